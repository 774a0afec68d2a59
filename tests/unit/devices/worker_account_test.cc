// What a worker tells of its time and its rows.
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/devices/worker.h"
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

TEST(WorkerTest, SamplesAddUp) {
  const WorkerFleet fleet(1);
  fleet.worker(0).CountChunk(DeviceWork::kInference, 20);
  fleet.worker(0).CountChunk(DeviceWork::kTraining, 7);
  EXPECT_EQ(fleet.worker(0).samples(), 27);
}

}  // namespace
}  // namespace braid
