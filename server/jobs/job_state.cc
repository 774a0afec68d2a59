#include "server/jobs/job_state.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

struct StateRow {
  absl::string_view name;
  // Allowed next states, in the order of kJobStates.
  std::array<bool, kJobStates.size()> next;
};

// A job fails only while it runs, or after a crash of the server while it ran.
constexpr std::array<StateRow, kJobStates.size()> kRows = {{
    //             queued running paused succeeded failed cancelled
    {"QUEUED", {{false, true, true, false, false, true}}},
    {"RUNNING", {{true, false, true, true, true, true}}},
    {"PAUSED", {{true, false, false, false, false, true}}},
    {"SUCCEEDED", {{}}},
    {"FAILED", {{}}},
    {"CANCELLED", {{}}},
}};

constexpr size_t IndexOf(JobState state) { return static_cast<size_t>(state) - 1; }

}  // namespace

absl::string_view JobStateName(JobState state) { return kRows[IndexOf(state)].name; }

bool HasEnded(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

absl::Status CheckTransition(JobState from, JobState to) {
  if (kRows[IndexOf(from)].next[IndexOf(to)]) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("state: a job that is ", JobStateName(from),
                                                    " cannot become ", JobStateName(to)));
}

}  // namespace braid
