// Time and rows that a worker counts.
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/worker.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

TEST(WorkerTest, NestedMeasurementsCountTimeOnce) {
  WorkerFleet fleet(1);
  Worker& worker = fleet.worker(0);
  absl::Duration elapsed;
  const auto spin = [](absl::Duration time) {
    const absl::Time end = absl::Now() + time;
    while (absl::Now() < end) {
    }
    return 0;
  };
  absl::Notification done;
  worker.Post([&] {
    const absl::Time start = absl::Now();
    worker.Measure(Phase::kForward, [&] {
      worker.Measure(Phase::kCopyIn, [&] { return spin(absl::Milliseconds(4)); });
      return spin(absl::Milliseconds(2));
    });
    elapsed = absl::Now() - start;
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_GE(worker.busy(Phase::kCopyIn), absl::Milliseconds(4));
  EXPECT_GE(worker.busy(Phase::kForward), absl::Milliseconds(2));
  EXPECT_LE(worker.busy(Phase::kCopyIn) + worker.busy(Phase::kForward), elapsed);
}

class DeviceTimeTest : public ::testing::Test {
 protected:
  DeviceTimeTest() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    device_->time = absl::ZeroDuration();
    worker_ = std::make_unique<Worker>(Worker::Options{"fake:0", 0.25, &clock_, &metrics_},
                                       std::move(device));
  }

  // Runs `work` on the worker.
  void Run(absl::AnyInvocable<void()> work) {
    absl::Notification done;
    worker_->Post([&] {
      work();
      done.Notify();
    });
    done.WaitForNotification();
  }
  // Queues `seconds` of work on the device in `phase` without waiting for it.
  void Compute(Phase phase, int seconds, absl::Duration* total = nullptr) {
    worker_->Measure(
        phase, [&] { return *device_->time += absl::Seconds(seconds); }, total);
  }

  const RealClock clock_;
  Metrics metrics_;
  FakeDevice* device_ = nullptr;
  std::unique_ptr<Worker> worker_;
};

TEST_F(DeviceTimeTest, CountsDeviceTimeAtSynchronization) {
  Run([&] {
    absl::Duration total = absl::Seconds(1);
    Compute(Phase::kForward, 5, &total);
    Compute(Phase::kBackward, 7);
    EXPECT_EQ(worker_->busy(Phase::kForward), absl::ZeroDuration());
    EXPECT_THAT(worker_->Synchronize(), IsOk());
    EXPECT_EQ(total, absl::Seconds(6));
    EXPECT_THAT(worker_->Synchronize(), IsOk());
  });
  EXPECT_EQ(worker_->busy(Phase::kForward), absl::Seconds(5));
  EXPECT_EQ(worker_->busy(Phase::kBackward), absl::Seconds(7));
}

TEST_F(DeviceTimeTest, NestedMeasurementsCountTimeOnce) {
  absl::Duration total;
  Run([&] {
    worker_->Measure(
        Phase::kForward,
        [&] {
          Compute(Phase::kCopyIn, 3);
          EXPECT_THAT(worker_->Synchronize(), IsOk());
          Compute(Phase::kCopyIn, 4);
          return *device_->time += absl::Seconds(2);
        },
        &total);
    EXPECT_THAT(worker_->Synchronize(), IsOk());
  });
  EXPECT_EQ(worker_->busy(Phase::kCopyIn), absl::Seconds(7));
  EXPECT_EQ(worker_->busy(Phase::kForward), absl::Seconds(2));
  EXPECT_EQ(total, absl::Seconds(9));
}

TEST_F(DeviceTimeTest, DoesNotCountTimeBeforeAFault) {
  Run([&] {
    {
      absl::Duration total;
      Compute(Phase::kForward, 5, &total);
      device_->set_fault(absl::InternalError("once"));
      EXPECT_FALSE(worker_->Synchronize().ok());
      EXPECT_EQ(total, absl::ZeroDuration());
    }
    device_->set_fault(absl::OkStatus());
    Compute(Phase::kForward, 1);
    EXPECT_THAT(worker_->Synchronize(), IsOk());
  });
  EXPECT_EQ(worker_->busy(Phase::kForward), absl::Seconds(1));
}

TEST_F(DeviceTimeTest, LoadThreadsCountNothing) {
  Run([&] { Compute(Phase::kForward, 5); });
  EXPECT_THAT(worker_->Synchronize(), IsOk());
  EXPECT_EQ(worker_->busy(Phase::kForward), absl::ZeroDuration());
  Run([&] { EXPECT_THAT(worker_->Synchronize(), IsOk()); });
  EXPECT_EQ(worker_->busy(Phase::kForward), absl::Seconds(5));
}

TEST(WorkerTest, AddsSamplesUp) {
  const WorkerFleet fleet(1);
  fleet.worker(0).CountChunk(DeviceWork::kInference, 20);
  fleet.worker(0).CountChunk(DeviceWork::kTraining, 7);
  EXPECT_EQ(fleet.worker(0).samples(), 27);
}

}  // namespace
}  // namespace braid
