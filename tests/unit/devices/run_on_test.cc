#include "server/devices/run_on.h"

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/synchronization/barrier.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

TEST(CatchTorchTest, PassesTheResultOn) {
  EXPECT_THAT(CatchTorch([] { return absl::OkStatus(); }), IsOk());
  EXPECT_THAT(CatchTorch([] { return absl::AbortedError("so it is"); }),
              StatusIs(absl::StatusCode::kAborted, StrEq("so it is")));
}

TEST(CatchTorchTest, ATorchErrorIsInternalWithItsFirstLine) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    TORCH_CHECK(false, "sizes differ\nand more");
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, StrEq("sizes differ")));
}

TEST(CatchTorchTest, OfAScriptErrorTheCauseIsLeft) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    throw std::runtime_error(
        "The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript (most recent call last):\n"
        "  File \"m.py\", line 3, in forward\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n");
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               StrEq("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")));
}

TEST(CatchTorchTest, MemoryThatIsNotToBeHadIsResourceExhausted) {
  EXPECT_THAT(CatchTorch([]() -> absl::Status { throw std::bad_alloc(); }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
  EXPECT_THAT(CatchTorch([]() -> absl::Status {
                TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory");
                return absl::OkStatus();
              }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("CUDA out of memory")));
}

TEST(RunOnEachTest, RunsEachOnItsWorkerAtTheSameTime) {
  const WorkerFleet fleet(3);
  absl::Barrier* all_there = new absl::Barrier(3);  // the last one through deletes it
  std::vector<Worker*> ran(3);
  const absl::Status status = RunOnEach(fleet.workers(), Phase::kForward, [&](size_t i) {
    if (all_there->Block()) {
      delete all_there;
    }
    ran[i] = &fleet.worker(i);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(ran, fleet.workers());
}

TEST(RunOnEachTest, WaitsForAllAndReturnsTheFirstErrorInOrder) {
  const WorkerFleet fleet(3);
  std::atomic<int> ran = 0;
  const absl::Status status =
      RunOnEach(fleet.workers(), Phase::kForward, [&](size_t i) -> absl::Status {
        ++ran;
        if (i == 2) {
          return absl::AbortedError("the last");
        }
        TORCH_CHECK(i != 1, "the middle");
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, StrEq("the middle")));
  EXPECT_EQ(ran, 3);
}

TEST(RunOnEachTest, CountsTheTimeAsThePhase) {
  const WorkerFleet fleet(1);
  EXPECT_THAT(RunOnEach(fleet.workers(), Phase::kUpdate, [](size_t) { return absl::OkStatus(); }),
              IsOk());
  EXPECT_GT(fleet.worker(0).busy(Phase::kUpdate), absl::ZeroDuration());
  EXPECT_EQ(fleet.worker(0).busy(Phase::kForward), absl::ZeroDuration());
}

TEST(RunOnEachTest, AFaultOfTheDeviceShowsAtItsSynchronization) {
  const RealClock clock;
  Metrics metrics;
  auto device = std::make_unique<FakeDevice>();
  FakeDevice& fake = *device;
  Worker worker({"fake:0", 0.25, &clock, &metrics}, std::move(device));
  const auto work = [](size_t) { return absl::OkStatus(); };
  EXPECT_THAT(RunOnEach({&worker}, Phase::kForward, work), IsOk());
  EXPECT_EQ(fake.synchronized(), 1);
  fake.set_fault(absl::InternalError("the device is lost"));
  EXPECT_THAT(RunOnEach({&worker}, Phase::kForward, work),
              StatusIs(absl::StatusCode::kInternal, StrEq("the device is lost")));
}

}  // namespace
}  // namespace braid
