// Ranks that wait at different barriers: all return and the group reports a deadlock.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "server/devices/worker_group.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Runs `meet` on three workers; 0 and 1 are a group. Expects the error on all ranks.
template <typename Meet>
void ExpectDeadlock(Meet meet) {
  const WorkerFleet fleet(3);
  std::vector<absl::Status> told(3);
  const absl::Status status = RunWorkerGroup(fleet.workers(), {{0, 1}, {1, 2}},
                                             [&](WorkerGroup& worker_group, size_t rank) {
                                               told[rank] = meet(worker_group, rank);
                                               return told[rank];
                                             });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("replicas deadlocked")));
  EXPECT_THAT(told, Each(StatusIs(absl::StatusCode::kCancelled, HasSubstr(""))));
  // The workers remain usable.
  EXPECT_THAT(RunWorkerGroup(fleet.workers(), {},
                             [](WorkerGroup& worker_group, size_t rank) {
                               return worker_group.Barrier(rank);
                             }),
              IsOk());
}

TEST(WorkerGroupDeadlockTest, SomeRanksWaitForAllAndSomeForTheirGroup) {
  ExpectDeadlock([](WorkerGroup& worker_group, size_t rank) {
    return rank == 0 ? worker_group.Barrier(/*group=*/0, rank) : worker_group.Barrier(rank);
  });
}

TEST(WorkerGroupDeadlockTest, RanksWaitForDifferentGroups) {
  ExpectDeadlock([](WorkerGroup& worker_group, size_t rank) {
    return rank == 0   ? worker_group.Barrier(/*group=*/0, rank)
             : rank == 1 ? worker_group.Barrier(/*group=*/1, rank)
                         : worker_group.Barrier(rank);
  });
}

TEST(WorkerGroupDeadlockTest, DeadlockAfterASuccessfulBarrier) {
  ExpectDeadlock([](WorkerGroup& worker_group, size_t rank) -> absl::Status {
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
    if (rank < 2) {
      BRAID_RETURN_IF_ERROR(worker_group.Barrier(/*group=*/0, rank));
    }
    return rank == 1 ? worker_group.Barrier(/*group=*/0, rank) : worker_group.Barrier(rank);
  });
}

// A rank that has returned does not block the others.
TEST(WorkerGroupDeadlockTest, RemainingRanksWaitAtDifferentBarriers) {
  const WorkerFleet fleet(3);
  const absl::Status status = RunWorkerGroup(
      fleet.workers(), {{0, 1}}, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        if (rank == 2) {
          return absl::OkStatus();
        }
        return rank == 0 ? worker_group.Barrier(/*group=*/0, rank) : worker_group.Barrier(rank);
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("replicas deadlocked")));
}

}  // namespace
}  // namespace braid
