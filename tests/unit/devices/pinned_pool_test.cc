#include "server/devices/cuda/pinned_pool.h"

#include <cstdint>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/host_allocator.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PinnedPoolTest : public ::testing::Test {
 protected:
  PinnedPoolTest() { InstallHostAllocator(); }

  absl::Status result_;  // of locking pages
  int locked_ = 0;       // calls
  PinnedPool pool_{[this](void* memory, size_t bytes) {
    ++locked_;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0);
    EXPECT_EQ(bytes % 4096, 0);
    return result_;
  }};
};

TEST_F(PinnedPoolTest, ReusesAFreedBlockWithoutLockingPages) {
  c10::DataPtr first = pool_.allocate(5000);
  const void* const data = first.get();
  first.clear();
  EXPECT_EQ(pool_.allocate(8192).get(), data);
  EXPECT_EQ(locked_, 1);
}

TEST_F(PinnedPoolTest, BlocksInUseAreDifferent) {
  const c10::DataPtr first = pool_.allocate(1);
  const c10::DataPtr second = pool_.allocate(1);
  EXPECT_NE(first.get(), second.get());
  EXPECT_EQ(locked_, 2);
}

TEST_F(PinnedPoolTest, UsesAnotherBlockForALargerTensor) {
  pool_.allocate(4096);
  pool_.allocate(4097);
  pool_.allocate(8192);
  EXPECT_EQ(locked_, 2);
}

TEST_F(PinnedPoolTest, UsesNoBlockForAnEmptyTensor) {
  EXPECT_EQ(pool_.allocate(0).get(), nullptr);
  EXPECT_EQ(locked_, 0);
}

TEST_F(PinnedPoolTest, CountsAsHostMemory) {
  const int64_t before = HostBytes();
  pool_.allocate(1 << 20);
  EXPECT_GE(HostBytes() - before, 1 << 20);
}

TEST_F(PinnedPoolTest, FreesAndReportsPagesThatCannotBeLocked) {
  const int64_t before = HostBytes();
  result_ = absl::InternalError("cudaHostRegister: unspecified launch failure");
  EXPECT_THAT([&] { pool_.allocate(1); },
              ThrowsMessage<c10::Error>(HasSubstr("unspecified launch failure")));
  EXPECT_EQ(HostBytes(), before);
}

}  // namespace
}  // namespace braid
