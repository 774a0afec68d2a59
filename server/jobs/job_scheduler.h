// Runs the jobs of a store: decides which job runs when, and records how it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/jobs/job.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_slots.h"
#include "server/jobs/running_job.h"
#include "server/jobs/store/job_store.h"
#include "server/telemetry/job_metrics.h"
#include "server/telemetry/metrics.h"
#include "server/tracking/tracking.h"

namespace braid {

struct JobSchedulerOptions {
  int64_t max_running = 1;    // number of threads; each runs one job at a time
  int64_t max_queued = 1000;  // of jobs that wait or are paused
  // A job fails after so many crashes of the server without durable progress in between.
  int64_t max_crashes = 5;
  // Records are removed when this time has passed since their jobs ended.
  absl::Duration retention = absl::Hours(24 * 30);
  // Jobs of one identity that run at the same time; 0: no limit.
  int64_t max_running_per_identity = 0;
  // Writes the metrics of jobs to files. Outlives the scheduler. nullptr: no files.
  Tracking* tracking = nullptr;
  // Returns true once the server can run no job any more, because a device is lost. Jobs that fail
  // with UNAVAILABLE then count as interrupted by a crash. nullptr: never.
  std::function<bool()> device_lost = nullptr;
};

// Owned by the server. Thread-safe. Methods block while the store reads and writes the disk.
class JobScheduler {
 public:
  // Called when a job has changed, by any thread; must not block or call the scheduler.
  using Watcher = std::function<void()>;

  // Returns jobs that were running when the server ended to the queue, or ends them, and starts the
  // threads. The pointers outlive the scheduler.
  static absl::StatusOr<std::unique_ptr<JobScheduler>> Start(JobStore* store, JobFactory* factory,
                                                             const Clock* clock, Metrics* metrics,
                                                             const JobSchedulerOptions& options);
  // Stops running jobs as Drain() does, and waits for them without a limit.
  ~JobScheduler();

  // Calls JobStore::Add(). RESOURCE_EXHAUSTED if the queue is full.
  absl::StatusOr<JobRecord> Submit(const NewJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a job with its progress so far.
  absl::StatusOr<JobRecord> Get(absl::string_view id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the progress of the running jobs among `jobs`, which the store returned.
  void AddProgress(std::vector<JobRecord>* jobs) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the running jobs, in the order of IDs.
  std::vector<std::shared_ptr<const RunningJob>> Running() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a job, a running one after its current step. No-op for a job that has ended.
  absl::StatusOr<JobRecord> Cancel(absl::string_view id) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps a job from running until Resume(); a running one stops after its current step. No-op for
  // a job that is paused. FAILED_PRECONDITION for one that has ended.
  absl::StatusOr<JobRecord> Pause(absl::string_view id) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a paused job to the queue. If it has not stopped yet, it stops first. No-op for a job
  // that is not paused. FAILED_PRECONDITION for one that has ended.
  absl::StatusOr<JobRecord> Resume(absl::string_view id) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes an ended job and its tracked metrics. FAILED_PRECONDITION for others.
  absl::Status Remove(absl::string_view id);

  // Calls `watcher` after each change of the job. Returns a number for Unwatch().
  int64_t Watch(absl::string_view id, Watcher watcher) ABSL_LOCKS_EXCLUDED(watchers_mu_);
  // The watcher is not called after this returns. Must not be called by a watcher.
  void Unwatch(int64_t number) ABSL_LOCKS_EXCLUDED(watchers_mu_);

  // Starts no more jobs and stops running ones at their next step.
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls RequestStop() and waits until no job runs: they are back in the queue. Returns false if
  // some still run at `deadline` (of the real clock).
  bool Drain(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  JobScheduler(JobStore* store, JobFactory* factory, const Clock* clock, Metrics* metrics,
               const JobSchedulerOptions& options)
      : store_(store), factory_(factory), clock_(clock), options_(options), metrics_(metrics) {}

  absl::Status Recover();
  // Body of each thread.
  void RunJobs() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for a queued job and marks it as running. Returns nullptr when the scheduler stops.
  std::shared_ptr<RunningJob> TakeNext() ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the next job as running. Returns nullptr if there is none.
  absl::StatusOr<std::shared_ptr<RunningJob>> StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes the threads, and stops running jobs whose slots belong to queued jobs of higher priority.
  void OnQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  JobLimits Limits() const;
  // Returns the running jobs that need not stop, in the order of submission.
  std::vector<QueuedJob> RunningOn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns false while as many jobs of its identity run, or stop, as may run.
  bool MayStart(const QueuedJob& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs the job and records its next state.
  void Execute(RunningJob* running) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the change of a job that failed because a device was lost.
  JobMove AfterLoss(const RunningJob& running) const;
  // Records the change, which `request` has led to. Returns false if the caller must try again:
  // the request has changed, or the disk failed and the scheduler does not stop.
  bool Finish(RunningJob* running, const JobStopRequest& request, const JobMove& move)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls JobStore::Move() and counts the change.
  absl::StatusOr<JobRecord> Move(absl::string_view id, const JobMove& move);
  // Calls Job::CleanUp() of a job that does not run.
  void CleanUp(const JobRecord& record);
  void RemoveExpired();
  void Notify(absl::string_view id) ABSL_LOCKS_EXCLUDED(watchers_mu_);

  JobStore* const store_;
  JobFactory* const factory_;
  const Clock* const clock_;
  const JobSchedulerOptions options_;
  JobMetrics metrics_;

  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool may_have_work_ ABSL_GUARDED_BY(mu_) = true;  // a job may have become ready to start
  std::map<std::string, std::shared_ptr<RunningJob>, std::less<>> running_ ABSL_GUARDED_BY(mu_);

  absl::Mutex watchers_mu_;
  int64_t last_watcher_ ABSL_GUARDED_BY(watchers_mu_) = 0;
  std::map<int64_t, std::pair<std::string, Watcher>> watchers_ ABSL_GUARDED_BY(watchers_mu_);

  // Last member: joined first.
  std::vector<std::thread> threads_;
};

}  // namespace braid
