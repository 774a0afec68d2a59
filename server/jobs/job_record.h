// Records of jobs, as they are stored and shown.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jobs/job_state.h"

namespace braid {

enum class JobKind { kTrain = 1, kInfer = 2 };  // stored on disk

inline constexpr std::array kJobKinds = {JobKind::kTrain, JobKind::kInfer};

// Returns the name, "train" or "infer".
inline absl::string_view JobKindName(JobKind kind) {
  return kind == JobKind::kTrain ? "train" : "infer";
}

// A job to be added. `id`: 1 to 64 characters that IsPlainName() accepts.
struct NewJob {
  std::string id;
  JobKind kind = JobKind::kTrain;
  std::string model;
  std::vector<std::string> tags;
  int64_t priority = 0;  // higher starts first
  // Serialized specification. Equal specifications have equal bytes.
  std::string spec;
  std::string identity;  // of the caller; empty without access control
};

// Position in a job.
struct JobProgress {
  int64_t rows = 0;  // training: over all epochs
  int64_t total_rows = 0;
  int64_t step = 0;  // training: batches done
  int64_t total_steps = 0;
  int64_t epoch = 0;  // training: current one, from 1
  int64_t epochs = 0;
  std::optional<double> loss;  // training: of the last step
  double rows_per_second = 0;
  double steps_per_second = 0;  // training
  double wait_seconds = 0;      // time that devices waited for data, since the last start
  int64_t durable_rows = 0;     // rows that a crash cannot undo
  int64_t skipped_rows = 0;     // of `rows`: left out, because they are unreadable
  bool operator==(const JobProgress&) const = default;
};

struct JobResult {
  int64_t version = 0;  // training: published; 0: none
  std::map<std::string, double> metrics;
  int64_t step = 0;    // training: batches before the published weights
  std::string output;  // inference: absolute path
  int64_t rows = 0;    // inference
  int64_t skipped_rows = 0;
  std::string reason;  // of the transition to SUCCEEDED, which stores it; may be empty
  bool operator==(const JobResult&) const = default;
};

struct JobRecord {
  int64_t number = 0;  // order of submission, unique, never used again
  std::string id;
  JobKind kind = JobKind::kTrain;
  std::string model;
  std::vector<std::string> tags;
  int64_t priority = 0;
  std::string spec;
  std::string identity;
  JobState state = JobState::kQueued;
  std::string reason;  // of the last transition
  absl::Time created;
  absl::Time started = absl::InfiniteFuture();  // first start; InfiniteFuture: not yet
  absl::Time ended = absl::InfiniteFuture();
  int64_t attempts = 0;  // times that the job started to run
  int64_t crashes = 0;   // crashes of the server in a row without durable progress in between
  bool cancel_requested = false;
  bool pause_requested = false;  // while the job runs: it becomes PAUSED when it has stopped
  JobProgress progress;
  // Written and read by the job only: what it must remember besides its progress.
  std::string memory;
  JobResult result;
};

// A job that waits, or runs, with what decides whether it may run.
struct QueuedJob {
  std::string id;
  std::string identity;
  int64_t priority = 0;
};

struct JobTransition {
  int64_t number = 0;            // counts the transitions of a job from 1
  absl::Time time;               // of a clock that may jump; `number` gives the order
  std::optional<JobState> from;  // nullopt: the job was submitted
  JobState to = JobState::kQueued;
  std::string reason;
};

struct JobMetric {
  int64_t step = 0;
  std::string name;
  double value = 0;
  bool operator==(const JobMetric&) const = default;
};

enum class JobLogLevel { kInfo = 1, kWarning = 2, kError = 3 };  // stored on disk

struct JobLogLine {
  int64_t number = 0;  // counts the lines of a job from 1
  absl::Time time;
  JobLogLevel level = JobLogLevel::kInfo;
  std::string text;
};

}  // namespace braid
