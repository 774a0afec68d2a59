#include "server/parallel/copy_on_write.h"

#include "ATen/ATen.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

at::Tensor Numbers() { return at::arange(6, at::kFloat); }

TEST(CopyOnWriteTest, SharesTheMemoryOfAViewInAStorageOfItsOwn) {
  const at::Tensor whole = Numbers();
  const at::Tensor shared = ShareMemory(whole, whole.narrow(0, 2, 4).view({2, 2}));
  EXPECT_EQ(shared.const_data_ptr(), whole.narrow(0, 2, 1).const_data_ptr());
  EXPECT_EQ(shared.storage().nbytes(), 4 * sizeof(float));
  EXPECT_TRUE(at::equal(shared, at::tensor({2.F, 3.F, 4.F, 5.F}).view({2, 2})));
}

TEST(CopyOnWriteTest, LaterValuesAreInOtherMemory) {
  const at::Tensor whole = Numbers();
  const at::Tensor view = whole.narrow(0, 2, 4);
  const at::Tensor shared = ShareMemory(whole, view);
  LeaveSharedMemory(whole);
  EXPECT_TRUE(at::equal(whole, Numbers()));
  whole.add_(10);
  EXPECT_EQ(view[0].item<float>(), 12);
  EXPECT_TRUE(at::equal(shared, Numbers().narrow(0, 2, 4)));
}

TEST(CopyOnWriteTest, SharedValuesOutliveTheirOwner) {
  at::Tensor shared;
  {
    const at::Tensor whole = Numbers();
    shared = ShareMemory(whole, whole);
  }
  EXPECT_TRUE(at::equal(shared, Numbers()));
}

TEST(CopyOnWriteTest, DoesNotCopyWhenNobodyReads) {
  const at::Tensor whole = Numbers();
  const void* memory = whole.const_data_ptr();
  LeaveSharedMemory(whole);
  EXPECT_EQ(whole.const_data_ptr(), memory);
  ShareMemory(whole, whole);
  LeaveSharedMemory(whole);
  EXPECT_EQ(whole.const_data_ptr(), memory);
}

TEST(CopyOnWriteTest, ReusesMemoryThatNobodyReadsAnyMore) {
  const at::Tensor whole = Numbers();
  const void* first = whole.const_data_ptr();
  at::Tensor version = ShareMemory(whole, whole);
  LeaveSharedMemory(whole);
  const void* second = whole.const_data_ptr();
  EXPECT_NE(second, first);
  version = ShareMemory(whole, whole);
  LeaveSharedMemory(whole);
  EXPECT_EQ(whole.const_data_ptr(), first);
  const at::Tensor next = ShareMemory(whole, whole);  // both pieces of memory are in use
  LeaveSharedMemory(whole);
  EXPECT_NE(whole.const_data_ptr(), first);
  EXPECT_NE(whole.const_data_ptr(), second);
}

}  // namespace
}  // namespace braid
