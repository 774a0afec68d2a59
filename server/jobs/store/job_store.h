// Records of jobs on disk: <data_dir>/jobs.sqlite.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/base/clock.h"
#include "server/jobs/job_record.h"
#include "server/jobs/store/sqlite.h"

namespace braid {

// Selects jobs. Empty members select all.
struct JobFilter {
  std::vector<JobState> states;
  std::string model;
  std::string tag;
  std::string identity;
  std::function<bool(const std::string& model)> sees_model;  // of the caller
};

struct JobPage {
  std::vector<JobRecord> jobs;
  bool complete = true;  // no more jobs follow
};

struct JobCount {
  JobKind kind = JobKind::kTrain;
  JobState state = JobState::kQueued;
  int64_t jobs = 0;
};

struct JobMetricPage {
  std::vector<JobMetric> metrics;  // sorted by step, then by name
  int64_t next_step = 0;           // first step that is missing; 0: none
};

// Change of a job's state.
struct JobMove {
  JobState to = JobState::kQueued;
  std::string reason;
  std::optional<JobResult> result;  // nullopt: stays
  bool crashed = false;             // the server crashed while the job ran
  // kFailed: code of the error, for metrics. The record has it in the reason only.
  absl::StatusCode error = absl::StatusCode::kOk;
};

// The NOT_FOUND error of an unknown job.
absl::Status NoJob(absl::string_view id);

// Thread-safe. Methods block while they read and write the disk. An unknown ID is NOT_FOUND. Other
// errors are those of SqlDatabase. A method that fails changes nothing.
class JobStore {
 public:
  // Log lines that are kept for each job, the newest.
  static constexpr int64_t kMaxLogLines = 10'000;

  // Opens the file, or creates it, and brings its schema up to date. Checks the whole file:
  // DATA_LOSS if it is damaged. Never removes it. `clock` outlives the store.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& path,
                                                        const Clock* clock);

  // Adds a queued job and returns once it is on disk. Returns the existing job if it has this ID
  // and an equal specification; ALREADY_EXISTS naming `id` if the specification differs.
  absl::StatusOr<JobRecord> Add(const NewJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<JobRecord> Get(absl::string_view id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns at most `limit` jobs after that with the number `after`, in the order of numbers.
  absl::StatusOr<JobPage> ListOldest(const JobFilter& filter, int64_t limit,
                                     int64_t after = 0) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns at most `limit` jobs before that with the number `before`, the newest first.
  absl::StatusOr<JobPage> ListNewest(const JobFilter& filter, int64_t limit,
                                     int64_t before = std::numeric_limits<int64_t>::max()) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns at most `limit` jobs in `state`: highest priority first, then submitted first.
  absl::StatusOr<std::vector<JobRecord>> InState(JobState state, int64_t limit) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the queued jobs: highest priority first, then submitted first.
  absl::StatusOr<std::vector<QueuedJob>> Queued() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the IDs of the jobs that ended before `time`, in the order of numbers.
  absl::StatusOr<std::vector<std::string>> EndedBefore(absl::Time time) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of jobs that are queued or paused.
  absl::StatusOr<int64_t> CountWaiting() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how many jobs of each kind are in each state.
  absl::StatusOr<std::vector<JobCount>> Count() const ABSL_LOCKS_EXCLUDED(mu_);

  // Changes the state, records the transition and returns once both are on disk. Clears
  // JobRecord::pause_requested.
  // FAILED_PRECONDITION by CheckTransition().
  absl::StatusOr<JobRecord> Move(absl::string_view id, const JobMove& move)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Records that a running job is to be cancelled; returns once it is on disk.
  absl::Status RequestCancel(absl::string_view id) ABSL_LOCKS_EXCLUDED(mu_);
  // Records whether a running job is to be paused; returns once it is on disk.
  absl::Status RequestPause(absl::string_view id, bool pause) ABSL_LOCKS_EXCLUDED(mu_);
  // Saves JobRecord::progress and JobRecord::memory. If `durable_rows` grew, resets the count of
  // crashes.
  absl::Status SaveProgress(absl::string_view id, const JobProgress& progress,
                            absl::string_view memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes an ended job with all that belongs to it. FAILED_PRECONDITION unless it has ended.
  absl::Status Remove(absl::string_view id) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the transitions after number `after`.
  absl::StatusOr<std::vector<JobTransition>> Transitions(absl::string_view id, int64_t after) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds values; a value of the same step and name is replaced.
  absl::Status AddMetrics(absl::string_view id, absl::Span<const JobMetric> metrics)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns metrics of `names` (empty: all) from `first_step` on. All values of a step are on one
  // page, which may therefore exceed `limit`.
  absl::StatusOr<JobMetricPage> Metrics(absl::string_view id, const std::vector<std::string>& names,
                                        int64_t first_step, int64_t limit) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a line with the next number. Removes lines beyond kMaxLogLines.
  absl::Status AddLog(absl::string_view id, JobLogLevel level, absl::string_view text)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns at most `limit` lines after number `after`.
  absl::StatusOr<std::vector<JobLogLine>> Logs(absl::string_view id, int64_t after,
                                               int64_t limit) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  JobStore(std::unique_ptr<SqlDatabase> database, const Clock* clock)
      : clock_(clock), database_(std::move(database)) {}

  absl::StatusOr<JobRecord> Find(absl::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns JobRecord::number.
  absl::StatusOr<int64_t> NumberOf(absl::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<JobPage> List(const char* sql, const JobFilter& filter, int64_t limit,
                               int64_t from) const ABSL_LOCKS_EXCLUDED(mu_);
  // `from`: 0 for the first transition.
  absl::Status AddTransition(int64_t number, int64_t from, const JobMove& move, int64_t now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;

  mutable absl::Mutex mu_;
  const std::unique_ptr<SqlDatabase> database_ ABSL_PT_GUARDED_BY(mu_);
};

}  // namespace braid
