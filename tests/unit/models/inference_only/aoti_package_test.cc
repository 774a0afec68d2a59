#include "server/models/inference_only/aoti_package.h"

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/host_allocator.h"
#include "server/devices/run_on.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

using Tensors = std::vector<at::Tensor>;

// Compiled code reports every error in the same words.
[[noreturn]] void FailAsCompiledCode() { throw std::runtime_error("run_func_() API call failed"); }

// Status of compiled code that does `run`.
template <typename Run>
absl::Status StatusOf(Run run) {
  return CatchTorch([&] {
    RunCompiledCode([&]() -> Tensors { return run(); });
    return absl::OkStatus();
  });
}

TEST(RunCompiledCodeTest, AnErrorAfterAFailedGpuAllocationIsOutOfMemory) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FakeDevice>());
  const WorkerFleet fleet(std::move(devices));
  auto& device = static_cast<FakeDevice&>(fleet.worker(0).device());
  device.ooms = 3;
  const auto run = [&](int64_t failed_allocations) {
    return RunOnEach(fleet.workers(), Phase::kForward, [&](size_t) {
      return StatusOf([&]() -> Tensors {
        device.ooms += failed_allocations;
        FailAsCompiledCode();
      });
    });
  };
  EXPECT_THAT(run(1),
              StatusIs(absl::StatusCode::kResourceExhausted, StrEq("cpu:0: out of memory")));
  EXPECT_THAT(run(0), StatusIs(absl::StatusCode::kInternal, HasSubstr("compiled code raised")));
}

TEST(RunCompiledCodeTest, AnErrorAfterAFailedHostAllocationIsOutOfMemory) {
  InstallHostAllocator();
  EXPECT_THAT(StatusOf([]() -> Tensors {
                try {
                  at::empty({int64_t{1} << 60}, at::kByte);
                } catch (const c10::Error&) {
                  FailAsCompiledCode();
                }
                return {};
              }),
              StatusIs(absl::StatusCode::kResourceExhausted, StrEq("host: out of memory")));
}

TEST(RunCompiledCodeTest, AFailedAllocationThatIsHandledIsNotAnError) {
  InstallHostAllocator();
  EXPECT_THAT(StatusOf([]() -> Tensors {
                EXPECT_THROW(at::empty({int64_t{1} << 60}, at::kByte), c10::Error);
                return {};
              }),
              IsOk());
}

TEST(RunCompiledCodeTest, OtherExceptionsPass) {
  EXPECT_THAT(StatusOf([]() -> Tensors { throw std::runtime_error("wrong number of inputs"); }),
              StatusIs(absl::StatusCode::kInternal, StrEq("wrong number of inputs")));
}

}  // namespace
}  // namespace braid
