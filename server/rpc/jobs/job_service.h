// braid.v1.JobService: jobs over datasets.
#pragma once

#include "braid/v1/job.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/jobs/jobs.h"
#include "server/rpc/call.h"
#include "server/rpc/jobs/job_watch.h"

namespace braid {

// Thread-safe. No method blocks: the service's threads use the store and the data. A slow check of
// a new job delays other new jobs only.
class JobService final : public braid::v1::JobService::CallbackService {
 public:
  // `jobs` and the pointers in `rpc` outlive the service.
  JobService(const Jobs* jobs, const RpcContext& rpc) : jobs_(jobs), rpc_(rpc) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* SubmitJob(Context* context, const braid::v1::SubmitJobRequest* request,
                     braid::v1::SubmitJobResponse* response) override;
  Reactor* GetJob(Context* context, const braid::v1::GetJobRequest* request,
                  braid::v1::GetJobResponse* response) override;
  Reactor* ListJobs(Context* context, const braid::v1::ListJobsRequest* request,
                    braid::v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<braid::v1::WatchJobResponse>* WatchJob(
      Context* context, const braid::v1::WatchJobRequest* request) override;
  Reactor* PauseJob(Context* context, const braid::v1::PauseJobRequest* request,
                    braid::v1::PauseJobResponse* response) override;
  Reactor* ResumeJob(Context* context, const braid::v1::ResumeJobRequest* request,
                     braid::v1::ResumeJobResponse* response) override;
  Reactor* CancelJob(Context* context, const braid::v1::CancelJobRequest* request,
                     braid::v1::CancelJobResponse* response) override;
  Reactor* DeleteJob(Context* context, const braid::v1::DeleteJobRequest* request,
                     braid::v1::DeleteJobResponse* response) override;
  Reactor* GetJobMetrics(Context* context, const braid::v1::GetJobMetricsRequest* request,
                         braid::v1::GetJobMetricsResponse* response) override;
  Reactor* GetJobLogs(Context* context, const braid::v1::GetJobLogsRequest* request,
                      braid::v1::GetJobLogsResponse* response) override;

 private:
  // Calls HandleUnaryOn() on `thread`, or replies why there are no jobs.
  template <typename Request, typename Response, typename Work>
  Reactor* HandleOn(TaskThread* thread, Context* context, absl::string_view method,
                    const Request* request, Response* response, Work work);
  // Calls HandleOn() with thread_.
  template <typename Request, typename Response, typename Work>
  Reactor* Handle(Context* context, absl::string_view method, const Request* request,
                  Response* response, Work work);
  // Handles a call that changes a job of the caller with a method of JobScheduler.
  template <typename Request, typename Response>
  Reactor* Change(Context* context, absl::string_view method, const Request* request,
                  Response* response,
                  absl::StatusOr<JobRecord> (JobScheduler::*change)(absl::string_view));
  // CANCELLED, without a new job, if the call ends before the job is checked.
  absl::Status Submit(const Context& context, const braid::v1::SubmitJobRequest& request,
                      braid::v1::SubmitJobResponse* response, UnaryCall& call) const;
  absl::Status List(const braid::v1::ListJobsRequest& request,
                    braid::v1::ListJobsResponse* response, const Caller& caller) const;
  // Returns a job that the caller may see, else NOT_FOUND.
  absl::StatusOr<JobRecord> Find(const std::string& id, const Caller& caller) const;
  // Returns a job that the caller may change: with the role that submitting it needs.
  absl::StatusOr<JobRecord> FindOwn(const std::string& id, const Caller& caller) const;

  const Jobs* const jobs_;
  const RpcContext rpc_;

  JobWatches watches_;
  // Last members: joined first.
  TaskThread thread_{"jobs"};
  TaskThread submits_{"new jobs"};  // reads data to check them
};

}  // namespace braid
