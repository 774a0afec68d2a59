// States of a job and the transitions between them.
#pragma once

#include <array>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// Values are stored on disk and equal those of braid.v1.JobState.
enum class JobState {
  kQueued = 1,
  kRunning = 2,
  kPaused = 3,
  kSucceeded = 4,
  kFailed = 5,
  kCancelled = 6,
};

inline constexpr std::array kJobStates = {JobState::kQueued, JobState::kRunning,
                                          JobState::kPaused, JobState::kSucceeded,
                                          JobState::kFailed, JobState::kCancelled};

// Returns the name, for example "QUEUED".
absl::string_view JobStateName(JobState state);

// Returns true for states that never change again.
bool HasEnded(JobState state);

// Checks that a job may change from `from` to `to`. FAILED_PRECONDITION naming both states.
absl::Status CheckTransition(JobState from, JobState to);

}  // namespace braid
