// Interfaces between the scheduler and the kinds of jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jobs/job_record.h"
#include "server/tracking/tracked_values.h"

namespace braid {

// Why a running job must stop.
enum class JobStop {
  kNone,
  kCancel,   // the job ends
  kDrain,    // the server ends; the job continues after its next start
  kPause,    // a user paused the job; it continues after ResumeJob
  kPreempt,  // the job returns to the queue and continues later
};

// Services of the scheduler for one running job. Used by the job's thread; stop(), AddMetrics() and
// WriteMetrics() by any.
class JobContext {
 public:
  virtual ~JobContext() = default;

  // Asked between steps. The job then returns CANCELLED as soon as its state is durable.
  virtual JobStop stop() const = 0;
  // Waits until the job must stop, at most for `timeout`.
  virtual void WaitForStop(absl::Duration timeout) const = 0;
  // Shows the progress. Does not block for long.
  virtual void Report(const JobProgress& progress) = 0;
  // Notes work that JobProgress does not show, such as a batch of an evaluation, so that the job
  // does not look stuck.
  virtual void NoteActivity() = 0;
  // Writes all metrics so far, then the progress and what the job must remember, which the next
  // start finds in JobRecord::memory.
  virtual absl::Status Save(const JobProgress& progress, absl::string_view memory) = 0;
  // Adds values of metrics at `step`, which is at least that of the last call. Written at least
  // once a second, if reports arrive.
  virtual void AddMetrics(int64_t step, std::vector<TrackedValue> values) = 0;
  // Writes all metrics so far. Called before a checkpoint is written: its steps are not repeated
  // after a crash, so metrics that are not written would be lost. Blocks. Logs an error: the
  // metrics stay and are written later.
  virtual void WriteMetrics() = 0;
  // Removes values of tracked metrics after `step`, from which the job continues after a crash or
  // another interruption, perhaps on another course.
  virtual void ContinueAfter(int64_t step) = 0;
  virtual void AddLog(JobLogLevel level, absl::string_view text) = 0;
};

// A job that can run. Thread-compatible.
class Job {
 public:
  virtual ~Job() = default;

  // Runs until the job is done, fails, or must stop; continues where an earlier run has stopped or
  // crashed. Returns the same result if it is run again after it is done. Blocks.
  virtual absl::StatusOr<JobResult> Run(JobContext* context) = 0;
  // Frees what the job holds and needs no longer, because it has ended: its trainer's memory, parts
  // of an output that is not complete. Called without or after Run(), perhaps again after a crash.
  virtual void CleanUp() = 0;
};

// Makes jobs from their records. Thread-safe.
class JobFactory {
 public:
  virtual ~JobFactory() = default;
  // Opens no data: Run() does, so that a job whose data is gone can still be cleaned up.
  virtual absl::StatusOr<std::unique_ptr<Job>> Make(const JobRecord& record) = 0;
  // Removes what an ended job has left and nobody can reach without its record: the checkpoints of
  // its trainer, an output that could not be uploaded. Never removes other outputs. May be called
  // again after an error or a crash.
  virtual absl::Status Remove(const JobRecord& record) = 0;
};

}  // namespace braid
