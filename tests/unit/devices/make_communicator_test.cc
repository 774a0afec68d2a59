#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/communicator.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsNull;

WorkerFleet Workers(const std::vector<c10::Device>& on) {
  std::vector<std::unique_ptr<Device>> devices;
  for (const c10::Device device : on) {
    devices.push_back(std::make_unique<FakeDevice>(device));
  }
  return WorkerFleet(std::move(devices));
}

TEST(MakeCommunicatorTest, AnExceptionOfTheBackendBecomesAStatus) {
  FakeCudaBackend cuda(2);
  const WorkerFleet fleet = Workers({{c10::kCUDA, 0}, {c10::kCUDA, 1}});
  EXPECT_THAT(MakeCommunicator(fleet.workers(), &cuda),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("device-side assert")));
}

TEST(MakeCommunicatorTest, WorkersThatShareAGpuHaveNone) {
  FakeCudaBackend cuda(1);
  const WorkerFleet fleet = Workers({{c10::kCUDA, 0}, {c10::kCUDA, 0}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto communicator, MakeCommunicator(fleet.workers(), &cuda));
  EXPECT_THAT(communicator, IsNull());
}

}  // namespace
}  // namespace braid
