#include "server/training/step/device_scalars.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "tests/fakes/counting_allocator.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeviceScalarsTest : public ::testing::Test {
 protected:
  DeviceScalarsTest() {
    auto fake = std::make_unique<FakeDevice>();
    fake->pinned = &pinned_;
    device_ = fake.get();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::move(fake));
    fleet_ = std::make_unique<WorkerFleet>(std::move(devices));
  }
  DeviceScalars::OnNumber Collect() {
    return [this](double number) { read_.push_back(number); };
  }

  CountingAllocator pinned_;
  FakeDevice* device_;
  std::unique_ptr<WorkerFleet> fleet_;
  std::vector<double> read_;
};

TEST_F(DeviceScalarsTest, ReadsAllNumbersWithOneTransferAndOneWait) {
  Staging staging(*device_);
  DeviceScalars numbers(staging);
  numbers.Add(at::scalar_tensor(0.25, at::kFloat), Collect());
  numbers.AddRange(at::tensor({3.0, -7.0, 5.0}), [this](double least, double most) {
    read_.insert(read_.end(), {least, most});
  });
  numbers.Add(at::scalar_tensor(1e300, at::kDouble), Collect());
  EXPECT_THAT(read_, IsEmpty());
  EXPECT_EQ(device_->synchronized(), 0);
  EXPECT_THAT(numbers.Read(fleet_->worker(0)), IsOk());
  EXPECT_THAT(read_, ElementsAre(0.25, -7, 5, 1e300));
  EXPECT_EQ(device_->synchronized(), 1);
  EXPECT_EQ(pinned_.allocations(), 1);
}

TEST_F(DeviceScalarsTest, ARangeWithNanIsNan) {
  Staging staging(*device_);
  DeviceScalars numbers(staging);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  numbers.AddRange(at::tensor({3.0, nan}), [this](double least, double most) {
    read_ = {least, most};
  });
  EXPECT_THAT(numbers.Read(fleet_->worker(0)), IsOk());
  EXPECT_TRUE(std::isnan(read_[0]) && std::isnan(read_[1]));
}

TEST_F(DeviceScalarsTest, DeliversNothingIfTheDeviceFails) {
  Staging staging(*device_);
  DeviceScalars numbers(staging);
  numbers.Add(at::scalar_tensor(1.0), Collect());
  device_->FailOnceAfter(1);
  EXPECT_THAT(numbers.Read(fleet_->worker(0)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the device is lost")));
  EXPECT_THAT(read_, IsEmpty());
}

TEST_F(DeviceScalarsTest, ChecksTheDeviceEvenWithoutNumbers) {
  Staging staging(*device_);
  DeviceScalars numbers(staging);
  device_->FailOnceAfter(1);
  EXPECT_FALSE(numbers.Read(fleet_->worker(0)).ok());
}

TEST_F(DeviceScalarsTest, DeliversNumbersOfACpuSlotAtOnce) {
  const std::unique_ptr<Device> cpu = MakeCpuDevice(/*threads=*/1);
  Staging staging(*cpu);
  DeviceScalars numbers(staging);
  numbers.Add(at::scalar_tensor(0.5), Collect());
  EXPECT_THAT(read_, ElementsAre(0.5));
}

}  // namespace
}  // namespace braid
