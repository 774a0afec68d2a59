#include "server/devices/staging.h"

#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "server/devices/device.h"
#include "tests/fakes/counting_allocator.h"
#include "tests/fakes/fake_device.h"

namespace braid {
namespace {

TEST(Staging, CopiesUploadsThroughPinnedMemory) {
  CountingAllocator pinned;
  FakeDevice device;
  device.pinned = &pinned;
  Staging staging(device);
  at::Tensor source = at::arange(6, at::kFloat).view({2, 3});
  const at::Tensor uploaded = staging.Upload(source);
  EXPECT_EQ(pinned.allocations(), 1);
  EXPECT_TRUE(at::equal(uploaded, source));
  source.zero_();  // the caller's memory is its own again
  EXPECT_FALSE(at::equal(uploaded, source));
  EXPECT_EQ(device.synchronized(), 0);
}

TEST(Staging, ReturnsTheHostTensorItselfOnACpuSlot) {
  const std::unique_ptr<Device> device = MakeCpuDevice(/*threads=*/1);
  Staging staging(*device);
  EXPECT_FALSE(staging.needed());
  const at::Tensor source = at::ones({2, 3});
  EXPECT_TRUE(staging.Upload(source).is_same(source));
}

}  // namespace
}  // namespace braid
