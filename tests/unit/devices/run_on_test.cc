#include "server/devices/run_on.h"

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/host_allocator.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/queue_source.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"
#include "torch/csrc/jit/runtime/graph_executor.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

TEST(CatchTorchTest, ReturnsTheStatus) {
  EXPECT_THAT(CatchTorch([] { return absl::OkStatus(); }), IsOk());
  EXPECT_THAT(CatchTorch([] { return absl::AbortedError("so it is"); }),
              StatusIs(absl::StatusCode::kAborted, StrEq("so it is")));
}

TEST(CatchTorchTest, ReturnsInternalWithTheFirstLineOfTheMessage) {
  const absl::Status status = CatchTorch([]() -> absl::Status {
    TORCH_CHECK(false, "sizes differ\nand more");
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, StrEq("sizes differ")));
}

TEST(CatchTorchTest, KeepsOnlyTheCauseOfATorchScriptError) {
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

TEST(CatchTorchTest, ReturnsResourceExhaustedForOutOfMemoryErrors) {
  EXPECT_THAT(CatchTorch([]() -> absl::Status { throw std::bad_alloc(); }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
  EXPECT_THAT(CatchTorch([]() -> absl::Status {
                TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory");
                return absl::OkStatus();
              }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("CUDA out of memory")));
}

TEST(CatchTorchTest, AFailedAllocationDoesNotChangeAnotherError) {
  InstallHostAllocator();
  EXPECT_THAT(CatchTorch([]() -> absl::Status {
                EXPECT_THROW(at::empty({int64_t{1} << 60}, at::kByte), c10::Error);
                throw std::runtime_error("shapes differ");
              }),
              StatusIs(absl::StatusCode::kInternal, StrEq("shapes differ")));
}

TEST(RunOnEachTest, RunsConcurrentlyOnAllWorkers) {
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

TEST(RunOnEachTest, AddsTheTimeToThePhase) {
  const WorkerFleet fleet(1);
  EXPECT_THAT(RunOnEach(fleet.workers(), Phase::kUpdate, [](size_t) { return absl::OkStatus(); }),
              IsOk());
  EXPECT_GT(fleet.worker(0).busy(Phase::kUpdate), absl::ZeroDuration());
  EXPECT_EQ(fleet.worker(0).busy(Phase::kForward), absl::ZeroDuration());
}

TEST(RunOnEachTest, ReturnsDeviceErrorsFoundBySynchronization) {
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

TEST(RepeatOnEachTest, RepeatsUntilTheCountOrAnError) {
  const WorkerFleet fleet(3);
  std::vector<int> ran(3);
  const absl::Status status = RepeatOnEach(fleet.workers(), Phase::kForward, 5, [&](size_t i) {
    return ++ran[i] == 2 && i == 1 ? absl::AbortedError("the second") : absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, StrEq("the second")));
  EXPECT_THAT(ran, ElementsAre(5, 2, 5));
}

TEST(RepeatOnEachTest, LetsOtherWorkRunBetweenRepetitions) {
  const WorkerFleet fleet(1);
  Worker& worker = fleet.worker(0);
  const auto source = std::make_shared<QueueSource>();
  worker.AddSource(source);
  std::vector<std::string> order;
  int runs = 0;
  EXPECT_THAT(RepeatOnEach(fleet.workers(), Phase::kForward, 3,
                           [&](size_t) {
                             order.emplace_back("run");
                             if (++runs == 1) {
                               source->Push([&] { order.emplace_back("batch"); });
                             } else if (runs == 2) {
                               worker.Post([&] { order.emplace_back("task"); });
                             }
                             return absl::OkStatus();
                           }),
              IsOk());
  EXPECT_THAT(order, ElementsAre("run", "batch", "run", "task", "run"));
}

// Takes about a millisecond.
void Spin() {
  const absl::Time start = absl::Now();
  while (absl::Now() - start < absl::Milliseconds(1)) {
  }
}

// Source that always has a batch.
class EndlessSource final : public WorkSource {
 public:
  Next Take(const Worker& /*worker*/, absl::Time /*now*/) override { return Work(&Spin); }
};

TEST(RepeatOnEachTest, SharesTheWorkerWithContinuousBatches) {
  const WorkerFleet fleet(1);
  const auto source = std::make_shared<EndlessSource>();
  fleet.worker(0).AddSource(source);
  const absl::Time start = absl::Now();
  absl::Duration runs;
  EXPECT_THAT(RepeatOnEach(fleet.workers(), Phase::kForward, 30,
                           [&](size_t) {
                             const absl::Time begun = absl::Now();
                             Spin();
                             runs += absl::Now() - begun;
                             return absl::OkStatus();
                           }),
              IsOk());  // hangs if the runs get no time
  // Batches get three quarters of the time.
  EXPECT_GT(absl::Now() - start - runs, runs);
}

TEST(RunOnLoadThreadsTest, RunsConcurrentlyWhileWorkersAreBusy) {
  const WorkerFleet fleet(2);
  const WorkerBlock first(fleet.worker(0));
  const WorkerBlock second(fleet.worker(1));
  absl::Barrier* all_there = new absl::Barrier(2);  // the last one through deletes it
  std::vector<std::string> devices(2);
  const absl::Status status = RunOnLoadThreads(fleet.workers(), [&](size_t i) {
    if (all_there->Block()) {
      delete all_there;
    }
    devices[i] = std::string(CurrentDeviceName());
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
  EXPECT_THAT(devices, ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(CurrentDeviceName(), "");
  EXPECT_EQ(fleet.worker(0).busy(Phase::kLoad), absl::ZeroDuration());
}

// Loading has a stream of its own: it does not wait for batches on the worker's stream.
TEST(RunOnLoadThreadsTest, DoesNotWaitForTheWorkersStream) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<FakeDevice>());
  const WorkerFleet fleet(std::move(devices));
  auto& device = static_cast<FakeDevice&>(fleet.worker(0).device());
  absl::Notification synchronizing;
  absl::Notification batch_ended;
  device.on_synchronize = [&] {
    synchronizing.Notify();
    batch_ended.WaitForNotification();
  };
  {
    const std::jthread serving([&] {
      EXPECT_THAT(
          RunOnEach(fleet.workers(), Phase::kForward, [](size_t) { return absl::OkStatus(); }),
          IsOk());
    });
    synchronizing.WaitForNotification();
    EXPECT_THAT(RunOnLoadThreads(fleet.workers(), [](size_t) { return absl::OkStatus(); }), IsOk());
    batch_ended.Notify();
  }
  EXPECT_EQ(device.entered(), 1);
  EXPECT_EQ(device.entered_for_loading(), 1);
}

TEST(RunOnLoadThreadsTest, SetsThreadsUpLikeWorkers) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(MakeCpuDevice(/*threads=*/3));
  const WorkerFleet fleet(std::move(devices));
  int threads = 0;
  bool optimizes = true;
  EXPECT_THAT(RunOnLoadThreads(fleet.workers(),
                               [&](size_t) {
                                 threads = at::get_num_threads();
                                 optimizes = torch::jit::getGraphExecutorOptimize();
                                 return absl::OkStatus();
                               }),
              IsOk());
  EXPECT_EQ(threads, 3);
  EXPECT_FALSE(optimizes);
}

TEST(RunOnLoadThreadsTest, WaitsForAllAndReturnsTheFirstErrorInOrder) {
  const WorkerFleet fleet(3);
  std::atomic<int> ran = 0;
  const absl::Status status = RunOnLoadThreads(fleet.workers(), [&](size_t i) -> absl::Status {
    ++ran;
    if (i == 1) {
      throw std::bad_alloc();
    }
    return i == 0 ? absl::OkStatus() : absl::AbortedError("the last");
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cpu:1: ")));
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace braid
