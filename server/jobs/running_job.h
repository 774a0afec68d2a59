// A job that is running, as the scheduler and its watchers see it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/jobs/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/store/job_store.h"
#include "server/telemetry/job_metrics.h"
#include "server/tracking/tracking.h"

namespace braid {

// Request to stop a running job.
struct JobStopRequest {
  JobStop stop = JobStop::kNone;
  std::string why;
  bool operator==(const JobStopRequest&) const = default;
};

// Owned by the thread that runs the job. Thread-safe.
class RunningJob final : public JobContext {
 public:
  // `store`, `clock` and `metrics` outlive the object. `tracked`: nullptr: metrics are only stored.
  // `changed` is called after each report.
  RunningJob(JobRecord record, JobStore* store, const Clock* clock, JobMetrics* metrics,
             std::shared_ptr<TrackedRun> tracked, std::function<void()> changed);

  const JobRecord& record() const { return record_; }  // as of the start
  JobProgress progress() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when the rows or steps last grew, or NoteActivity() was called; at first, the start.
  absl::Time last_progress() const ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the job to stop at its next step. kCancel replaces every earlier request, and kPause
  // replaces kDrain and kPreempt; otherwise the first request stays. `why`: reason of the job's
  // next transition.
  void RequestStop(JobStop stop, absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Withdraws kPause: the job still stops, but returns to the queue. No-op for another request.
  void WithdrawPause(absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the last request and its reason.
  JobStopRequest stop_request() const ABSL_LOCKS_EXCLUDED(mu_);
  // Writes all metrics so far, to the tracked files and to the store.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);

  // JobContext:
  JobStop stop() const override ABSL_LOCKS_EXCLUDED(mu_);
  void WaitForStop(absl::Duration timeout) const override ABSL_LOCKS_EXCLUDED(mu_);
  void Report(const JobProgress& progress) override ABSL_LOCKS_EXCLUDED(mu_);
  void NoteActivity() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Save(const JobProgress& progress, absl::string_view memory) override
      ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  void AddMetrics(int64_t step, std::vector<TrackedValue> values) override ABSL_LOCKS_EXCLUDED(mu_);
  void WriteMetrics() override ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  void ContinueAfter(int64_t step) override ABSL_LOCKS_EXCLUDED(mu_);
  void AddLog(JobLogLevel level, absl::string_view text) override;

 private:
  // Sets progress_ and its rates, and counts the new rows and steps.
  void SetProgress(const JobProgress& progress) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the metrics that wait to the store.
  absl::Status Store() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  // Calls Store() if it is due, and logs its error.
  void StoreIfDue() ABSL_LOCKS_EXCLUDED(write_mu_, mu_);
  void LogUnwritten(const absl::Status& status) const;

  const JobRecord record_;
  JobStore* const store_;
  const Clock* const clock_;
  JobMetrics* const metrics_;
  const std::shared_ptr<TrackedRun> tracked_;
  const std::function<void()> changed_;

  // Held while metrics are written, so that Store() does not return before those that another
  // thread is writing are in the store.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  mutable absl::Mutex mu_;
  JobStopRequest stop_ ABSL_GUARDED_BY(mu_);
  JobProgress progress_ ABSL_GUARDED_BY(mu_);
  absl::Time last_progress_ ABSL_GUARDED_BY(mu_);
  std::vector<JobMetric> unwritten_ ABSL_GUARDED_BY(mu_);  // metrics
  int64_t tracked_step_ ABSL_GUARDED_BY(mu_) = 0;          // newest with a tracked rate of rows
  absl::Time next_store_ ABSL_GUARDED_BY(mu_);
  // Start of the interval over which the rates are measured.
  absl::Time rate_start_ ABSL_GUARDED_BY(mu_);
  int64_t rate_rows_ ABSL_GUARDED_BY(mu_) = -1;  // -1: no report yet
  int64_t rate_step_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace braid
