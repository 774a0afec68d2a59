// WatchJob: sends the changes of a job while they happen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/job.pb.h"
#include "server/admission/open_streams.h"
#include "server/jobs/job_record.h"
#include "server/jobs/jobs.h"
#include "server/rpc/call.h"

namespace braid {

class JobWatches;

// One call. Deletes itself when the call is over.
class JobWatch final : public grpc::ServerWriteReactor<braid::v1::WatchJobResponse>,
                       public OpenStream {
 public:
  // All pointers outlive the call.
  JobWatch(const Jobs* jobs, JobWatches* watches, const RpcContext& rpc,
           const grpc::CallbackServerContext& context, const braid::v1::WatchJobRequest& request);
  ~JobWatch() override;

  // Sends the next event, unless one is being sent. Called by the thread of `watches`, which may
  // block on the store.
  void Advance() ABSL_LOCKS_EXCLUDED(mu_);

  void BeginClose(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override;

 private:
  // Fills event_. Returns false if there is nothing to send now.
  absl::StatusOr<bool> FillNext();
  // Returns the transitions that were not sent yet. INVALID_ARGUMENT for an unknown `after`.
  absl::StatusOr<std::vector<JobTransition>> NewTransitions();
  absl::StatusOr<JobRecord> FindJob() ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Jobs* const jobs_;
  JobWatches* const watches_;
  const RpcContext rpc_;
  const std::string id_;
  std::shared_ptr<JobWatch> self_;  // gRPC's reference, until OnDone()

  // Used by the thread of the watches, between writes.
  int64_t watcher_ = 0;  // number of JobScheduler::Watch(); 0: not yet
  int64_t last_transition_ = 0;
  bool checked_after_ = false;
  std::optional<JobProgress> sent_progress_;
  bool complete_ = false;  // the last transition was sent
  braid::v1::WatchJobResponse event_;

  absl::Mutex mu_;
  CallRecord record_ ABSL_GUARDED_BY(mu_);
  Caller caller_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread that advances all watches after changes, at most 10 times a second. Thread-safe.
class JobWatches {
 public:
  JobWatches();
  ~JobWatches();

  void Add(std::shared_ptr<JobWatch> watch) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const JobWatch* watch) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets the thread advance the watches.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::set<std::shared_ptr<JobWatch>> watches_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
