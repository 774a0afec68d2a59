// The server's jobs: records, scheduler, and what they run on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/data/open_data_source.h"
#include "server/data/row_cache.h"
#include "server/jobs/job_maker.h"
#include "server/jobs/job_scheduler.h"
#include "server/jobs/job_spec.h"
#include "server/jobs/store/job_store.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

struct JobsOptions {
  std::string data_dir;  // empty: no jobs
  DataDirectories data;
  std::string output_root;
  std::string model_repository;
  std::string upload_root;  // of outputs in S3
  int64_t cache_bytes = 0;  // limit of the row cache
  JobSchedulerOptions scheduler;
};

// Owned by the server. Thread-safe after Start(). If jobs are impossible, for example because the
// store is damaged, the server runs without them: error() says why, and only error() may be called.
class Jobs {
 public:
  // Opens the store and the row cache. Logs the error if that fails. The pointers outlive the
  // object.
  Jobs(JobsOptions options, TrainerRegistry* trainers, Publisher* publisher, Metrics* metrics,
       JobSpecReader read_spec, const Clock* clock);

  // Continues the jobs of the store. Call once, when models are served and trainers restored.
  void Start();
  // Lets running jobs stop at their next step; starts no more.
  void RequestStop();
  // Calls JobScheduler::Drain(). Returns true without jobs.
  bool Drain(absl::Time deadline);

  // Returns true once Start() has succeeded. On any thread.
  bool started() const { return started_.load(); }
  // FAILED_PRECONDITION with the reason if the server has no jobs.
  const absl::Status& error() const { return error_; }
  JobStore& store() const { return *store_; }
  JobMaker& maker() const { return *maker_; }
  JobScheduler& scheduler() const { return *scheduler_; }

 private:
  absl::Status Open(TrainerRegistry* trainers, Publisher* publisher, JobSpecReader read_spec);
  void Disable(const absl::Status& why);

  const JobsOptions options_;
  const Clock* const clock_;
  Metrics* const metrics_;
  absl::Status error_;
  std::atomic<bool> started_ = false;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<RowCache> rows_;
  std::unique_ptr<JobMaker> maker_;
  // Last member: joined first.
  std::unique_ptr<JobScheduler> scheduler_;
};

}  // namespace braid
