#include "server/jobs/job_slots.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

QueuedJob Of(const std::string& id, int64_t priority, const std::string& identity = "ann") {
  return {id, identity, priority};
}

TEST(JobSlotsTest, FreeSlotsGoToTheFirstQueuedJobs) {
  const JobSlots slots = AssignSlots({Of("a", 0)}, {Of("b", 1), Of("c", 0), Of("d", 0)}, {3, 0});
  EXPECT_THAT(slots.start, ElementsAre("b", "c"));
  EXPECT_THAT(slots.preempt, IsEmpty());
}

TEST(JobSlotsTest, EqualPriorityDoesNotPreempt) {
  const JobSlots slots = AssignSlots({Of("a", 0)}, {Of("b", 0)}, {1, 0});
  EXPECT_THAT(slots.start, IsEmpty());
  EXPECT_THAT(slots.preempt, IsEmpty());
}

TEST(JobSlotsTest, HigherPriorityPreemptsTheLastOfTheLowestPriority) {
  const JobSlots slots =
      AssignSlots({Of("a", 0), Of("b", 0), Of("c", 1)}, {Of("d", 5), Of("e", 0)}, {3, 0});
  EXPECT_THAT(slots.start, ElementsAre("d"));
  ASSERT_THAT(slots.preempt, SizeIs(1));
  EXPECT_EQ(slots.preempt[0].job, "b");
  EXPECT_EQ(slots.preempt[0].by, "d");
  EXPECT_EQ(slots.preempt[0].priority, 5);
}

TEST(JobSlotsTest, PassesOverJobsBeyondTheLimitOfTheirIdentity) {
  const JobSlots slots = AssignSlots(
      {Of("a", 0, "ann")}, {Of("b", 0, "ann"), Of("c", 0, "bob"), Of("d", 0, "bob")}, {3, 1});
  EXPECT_THAT(slots.start, ElementsAre("c"));
  EXPECT_THAT(slots.preempt, IsEmpty());
}

TEST(JobSlotsTest, PreemptsWithinAnIdentityThatHasReachedItsLimit) {
  const JobSlots slots =
      AssignSlots({Of("a", 0, "ann"), Of("b", -1, "bob")}, {Of("c", 1, "ann")}, {3, 1});
  EXPECT_THAT(slots.start, ElementsAre("c"));
  ASSERT_THAT(slots.preempt, SizeIs(1));
  EXPECT_EQ(slots.preempt[0].job, "a");
  EXPECT_EQ(slots.preempt[0].by, "c");
}

}  // namespace
}  // namespace braid
