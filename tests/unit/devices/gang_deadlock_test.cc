// Ranks that wait for each other at different meetings: all return, and the gang says so.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "server/devices/gang.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/worker_fleet.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Runs `meet` on three workers, of which 0 and 1 are a group; all are to be told.
template <typename Meet>
void ExpectDeadlock(Meet meet) {
  const WorkerFleet fleet(3);
  std::vector<absl::Status> told(3);
  const absl::Status status =
      RunGang(fleet.workers(), {{0, 1}, {1, 2}}, [&](Gang& gang, size_t rank) {
        told[rank] = meet(gang, rank);
        return told[rank];
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("wait for each other")));
  EXPECT_THAT(told, Each(StatusIs(absl::StatusCode::kCancelled, HasSubstr(""))));
  // The workers are free for the next.
  EXPECT_THAT(RunGang(fleet.workers(), {}, [](Gang& gang, size_t rank) { return gang.Meet(rank); }),
              IsOk());
}

TEST(GangDeadlockTest, SomeMeetAllAndSomeTheirGroup) {
  ExpectDeadlock([](Gang& gang, size_t rank) {
    return rank == 0 ? gang.Meet(/*group=*/0, rank) : gang.Meet(rank);
  });
}

TEST(GangDeadlockTest, EachMeetsAnotherGroup) {
  ExpectDeadlock([](Gang& gang, size_t rank) {
    return rank == 0   ? gang.Meet(/*group=*/0, rank)
             : rank == 1 ? gang.Meet(/*group=*/1, rank)
                         : gang.Meet(rank);
  });
}

TEST(GangDeadlockTest, TheyCameTogetherOnceBefore) {
  ExpectDeadlock([](Gang& gang, size_t rank) -> absl::Status {
    BRAID_RETURN_IF_ERROR(gang.Meet(rank));
    if (rank < 2) {
      BRAID_RETURN_IF_ERROR(gang.Meet(/*group=*/0, rank));
    }
    return rank == 1 ? gang.Meet(/*group=*/0, rank) : gang.Meet(rank);
  });
}

// One that is done cannot come either, but does not keep the others waiting.
TEST(GangDeadlockTest, ThoseWhoAreLeftWaitAtDifferentMeetings) {
  const WorkerFleet fleet(3);
  const absl::Status status =
      RunGang(fleet.workers(), {{0, 1}}, [&](Gang& gang, size_t rank) -> absl::Status {
        if (rank == 2) {
          return absl::OkStatus();
        }
        return rank == 0 ? gang.Meet(/*group=*/0, rank) : gang.Meet(rank);
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("wait for each other")));
}

}  // namespace
}  // namespace braid
