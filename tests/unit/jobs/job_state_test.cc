#include "server/jobs/job_state.h"

#include <set>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using enum JobState;

TEST(JobStateTest, AllowsTheseTransitionsOnly) {
  const std::set<std::pair<JobState, JobState>> allowed = {
      {kQueued, kRunning}, {kQueued, kPaused},   {kQueued, kCancelled},  {kRunning, kQueued},
      {kRunning, kPaused}, {kRunning, kFailed},  {kRunning, kSucceeded}, {kRunning, kCancelled},
      {kPaused, kQueued},  {kPaused, kCancelled}};
  for (const JobState from : kJobStates) {
    for (const JobState to : kJobStates) {
      EXPECT_EQ(CheckTransition(from, to).ok(), allowed.contains({from, to}))
          << JobStateName(from) << " to " << JobStateName(to);
    }
  }
}

TEST(JobStateTest, ErrorNamesBothStates) {
  EXPECT_THAT(CheckTransition(kSucceeded, kRunning),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "state: a job that is SUCCEEDED cannot become RUNNING"));
}

TEST(JobStateTest, AnEndedJobNeverChanges) {
  for (const JobState from : kJobStates) {
    bool changes = false;
    for (const JobState to : kJobStates) {
      changes = changes || CheckTransition(from, to).ok();
    }
    EXPECT_EQ(HasEnded(from), !changes) << JobStateName(from);
  }
}

}  // namespace
}  // namespace braid
