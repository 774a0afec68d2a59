#include "server/devices/worker_group.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

TEST(RunWorkerGroupTest, RunsEachRankOnItsWorker) {
  const WorkerFleet fleet(3);
  std::vector<std::thread::id> workers(3);
  for (size_t w = 0; w < 3; ++w) {
    EXPECT_THAT(RunWorkerGroup({&fleet.worker(w)}, {},
                               [&](WorkerGroup&, size_t) {
                                 workers[w] = std::this_thread::get_id();
                                 return absl::OkStatus();
                               }),
                IsOk());
  }
  std::vector<std::thread::id> ran(3);
  EXPECT_THAT(RunWorkerGroup(fleet.workers(), {},
                             [&](WorkerGroup& worker_group, size_t rank) {
                               ran[rank] = std::this_thread::get_id();
                               EXPECT_EQ(worker_group.size(), 3);
                               EXPECT_EQ(&worker_group.worker(rank), &fleet.worker(rank));
                               return absl::OkStatus();
                             }),
              IsOk());
  EXPECT_EQ(ran, workers);
}

TEST(RunWorkerGroupTest, BarrierMakesWritesVisibleToAllRanks) {
  const WorkerFleet fleet(3);
  std::vector<int> written(3);
  std::vector<std::vector<int>> seen(3);
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), {}, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        for (int phase = 1; phase <= 3; ++phase) {
          written[rank] = phase;
          BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
          seen[rank] = written;
          BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
          EXPECT_THAT(seen[rank], Each(phase));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(status, IsOk());
}

TEST(RunWorkerGroupTest, GroupsHaveTheirOwnBarriers) {
  const WorkerFleet fleet(4);
  const std::vector<RankGroup> groups = {{0, 2}, {1, 3}};
  std::vector<int> written(4);
  std::vector<int> of_other(4);
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), groups, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        const size_t group = rank % 2;
        // The second group has more barriers.
        for (size_t meeting = 0; meeting <= group; ++meeting) {
          written[rank] = static_cast<int>(10 * meeting + rank);
          BRAID_RETURN_IF_ERROR(worker_group.Barrier(group, rank));
          of_other[rank] = written[(rank + 2) % 4];
          BRAID_RETURN_IF_ERROR(worker_group.Barrier(group, rank));
        }
        return worker_group.Barrier(rank);
      });
  EXPECT_THAT(status, IsOk());
  EXPECT_THAT(of_other, ElementsAre(2, 13, 0, 11));
}

// Results of the other ranks' next barrier after one of three ranks fails.
void ExpectAFailureIsTold(absl::FunctionRef<absl::Status(WorkerGroup&, size_t)> meet) {
  const WorkerFleet fleet(3);
  std::vector<absl::Status> met(3);
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), {{0, 1, 2}}, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        if (rank == 1) {
          return absl::ResourceExhaustedError("no memory");
        }
        met[rank] = meet(worker_group, rank);
        return met[rank];
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, StrEq("no memory")));
  const auto told = StatusIs(absl::StatusCode::kCancelled, HasSubstr("another replica failed"));
  EXPECT_THAT(met[0], told);
  EXPECT_THAT(met[2], told);
}

TEST(RunWorkerGroupTest, AFailureCancelsOtherRanksAtTheNextBarrier) {
  ExpectAFailureIsTold(
      [](WorkerGroup& worker_group, size_t rank) { return worker_group.Barrier(rank); });
}

TEST(RunWorkerGroupTest, AFailureCancelsOtherRanksAtTheNextGroupBarrier) {
  ExpectAFailureIsTold([](WorkerGroup& worker_group, size_t rank) {
    return worker_group.Barrier(/*group=*/0, rank);
  });
}

TEST(RunWorkerGroupTest, AnExceptionIsAFailure) {
  const WorkerFleet fleet(2);
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), {}, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
        if (rank == 0) {
          throw std::runtime_error("sizes differ");
        }
        return worker_group.Barrier(rank);
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, StrEq("sizes differ")));
}

TEST(RunWorkerGroupTest, BarriersDoNotWaitForRanksThatHaveReturned) {
  const WorkerFleet fleet(3);
  std::atomic<int> met{0};
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), {}, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        for (size_t meeting = 0; meeting < rank; ++meeting) {
          BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
          ++met;
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(met, 3);
}

TEST(RunWorkerGroupTest, AFailureDoesNotAffectTheNextGroup) {
  const WorkerFleet fleet(2);
  const auto run = [&](bool fail) {
    return RunWorkerGroup(fleet.workers(), {},
                          [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
                            if (fail && rank == 0) {
                              return absl::AbortedError("first");
                            }
                            return worker_group.Barrier(rank);
                          });
  };
  EXPECT_THAT(run(true), StatusIs(absl::StatusCode::kAborted, StrEq("first")));
  EXPECT_THAT(run(false), IsOk());
}

// Worker on a device with errors set by the test.
class FaultyWorker {
 public:
  FaultyWorker() {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    worker_ = std::make_unique<Worker>(Worker::Options{"fake:0", 0.25, &clock_, &metrics_},
                                       std::move(device));
  }
  FakeDevice& device() { return *device_; }
  Worker* worker() { return worker_.get(); }

 private:
  const RealClock clock_;
  Metrics metrics_;
  FakeDevice* device_;
  std::unique_ptr<Worker> worker_;
};

TEST(RunWorkerGroupTest, BarrierAndReturnSynchronizeTheDevice) {
  FaultyWorker faulty;
  int before = 0;
  int after = 0;
  EXPECT_THAT(RunWorkerGroup({faulty.worker()}, {},
                             [&](WorkerGroup& worker_group, size_t rank) {
                               before = faulty.device().synchronized();
                               absl::Status met = worker_group.Barrier(rank);
                               after = faulty.device().synchronized();
                               return met;
                             }),
              IsOk());
  EXPECT_EQ(before, 0);
  EXPECT_EQ(after, 1);
  EXPECT_EQ(faulty.device().synchronized(), 2);
}

// Devices with streams wait for each other's events; the host waits only at the end.
TEST(RunWorkerGroupTest, DevicesWithStreamsAreSynchronizedOnceAtTheEnd) {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<FakeDevice*> fakes;
  for (int d = 0; d < 3; ++d) {
    auto fake = std::make_unique<FakeDevice>();
    fake->time = absl::ZeroDuration();
    fakes.push_back(fake.get());
    devices.push_back(std::move(fake));
  }
  const WorkerFleet fleet(std::move(devices));
  constexpr int kBarriers = 5;
  EXPECT_THAT(RunWorkerGroup(fleet.workers(), {},
                             [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
                               for (int b = 0; b < kBarriers; ++b) {
                                 BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
                               }
                               return absl::OkStatus();
                             }),
              IsOk());
  for (const FakeDevice* device : fakes) {
    EXPECT_EQ(device->synchronized(), 1);
    EXPECT_EQ(device->waited_for(), kBarriers * 2);  // for each of the two others
  }
}

TEST(RunWorkerGroupTest, ACpuSlotWaitsForTheEventsOfOtherDevices) {
  std::vector<std::unique_ptr<Device>> devices;
  auto gpu = std::make_unique<FakeDevice>();
  gpu->time = absl::ZeroDuration();
  auto cpu = std::make_unique<FakeDevice>();
  FakeDevice* const with_stream = gpu.get();
  FakeDevice* const without = cpu.get();
  devices.push_back(std::move(gpu));
  devices.push_back(std::move(cpu));
  const WorkerFleet fleet(std::move(devices));
  EXPECT_THAT(RunWorkerGroup(fleet.workers(), {},
                             [](WorkerGroup& worker_group, size_t rank) {
                               return worker_group.Barrier(rank);
                             }),
              IsOk());
  EXPECT_EQ(without->waited_for(), 1);
  EXPECT_EQ(with_stream->waited_for(), 0);  // what a CPU slot does has ended when it arrives
  EXPECT_EQ(with_stream->synchronized(), 1);
}

TEST(RunWorkerGroupTest, ADeviceErrorIsAFailure) {
  const WorkerFleet fleet(1);
  FaultyWorker faulty;
  faulty.device().set_fault(absl::InternalError("device is lost"));
  absl::Status met;
  const absl::Status status =
      RunWorkerGroup({&fleet.worker(0), faulty.worker()}, {},
                     [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
                       absl::Status result = worker_group.Barrier(rank);
                       if (rank == 0) {
                         met = result;
                       }
                       return result;
                     });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, StrEq("device is lost")));
  EXPECT_THAT(met, StatusIs(absl::StatusCode::kCancelled, HasSubstr("another replica failed")));
}

TEST(RunWorkerGroupTest, GroupsThatShareWorkersInAnyOrderDoNotDeadlock) {
  const WorkerFleet fleet(3);
  std::vector<Worker*> backwards = fleet.workers();
  std::reverse(backwards.begin(), backwards.end());
  const auto run_often = [](const std::vector<Worker*>& workers, int* met) {
    for (int run = 0; run < 200; ++run) {
      std::vector<int> meetings(workers.size());
      EXPECT_THAT(RunWorkerGroup(workers, {{0, 1}},
                                 [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
                                   BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
                                   if (rank < 2) {
                                     BRAID_RETURN_IF_ERROR(worker_group.Barrier(/*group=*/0, rank));
                                   }
                                   BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
                                   meetings[rank] = 1;
                                   return absl::OkStatus();
                                 }),
                  IsOk());
      *met += meetings[0] + meetings[1] + meetings[2];
    }
  };
  int met = 0;
  int met_backwards = 0;
  std::thread other([&] { run_often(backwards, &met_backwards); });
  run_often(fleet.workers(), &met);
  other.join();
  EXPECT_EQ(met, 600);
  EXPECT_EQ(met_backwards, 600);
}

}  // namespace
}  // namespace braid
