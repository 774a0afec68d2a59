#include "server/rpc/jobs/job_service.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/random_id.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/jobs/job_messages.h"

namespace braid {
namespace {

constexpr int32_t kMaxPage = 1000;
constexpr int32_t kDefaultPage = 100;
constexpr int64_t kMaxMetricValues = 1'000'000;
constexpr int32_t kMaxLines = 10'000;
constexpr int32_t kDefaultLines = 1000;
// The ID of a job that is only checked.
constexpr char kNoId[] = "dry-run";

// Returns the size of a page; 0 means the default.
absl::StatusOr<int64_t> PageSize(absl::string_view field, int32_t size, int32_t default_size,
                                 int32_t max) {
  if (size < 0 || size > max) {
    return InvalidField(field, absl::StrCat(size, " is out of range (expected 1 to ", max, ")"));
  }
  return size == 0 ? default_size : size;
}

absl::Status CheckNotNegative(absl::string_view field, int64_t value) {
  return value >= 0 ? absl::OkStatus()
                    : InvalidField(field, absl::StrCat(value, " (expected at least 0)"));
}

// A page's token is the number of the last job of the page before.
absl::StatusOr<int64_t> ReadToken(const std::string& token, int64_t first) {
  int64_t number = first;
  if (!token.empty() && (!absl::SimpleAtoi(token, &number) || number < 1)) {
    return InvalidField("page_token", absl::StrCat("'", Excerpt(token),
                                                   "' (expected next_page_token of the page "
                                                   "before)"));
  }
  return number;
}

}  // namespace

template <typename Request, typename Response, typename Work>
JobService::Reactor* JobService::HandleOn(TaskThread* thread, Context* context,
                                          absl::string_view method, const Request* request,
                                          Response* response, Work work) {
  return HandleUnaryOn(thread, rpc_, context, method, request, response,
                       [this, work](const Request& message, Response* reply, UnaryCall& call) {
                         return jobs_->error().ok() ? work(message, reply, call) : jobs_->error();
                       });
}

template <typename Request, typename Response, typename Work>
JobService::Reactor* JobService::Handle(Context* context, absl::string_view method,
                                        const Request* request, Response* response, Work work) {
  return HandleOn(&thread_, context, method, request, response, work);
}

absl::StatusOr<JobRecord> JobService::Find(const std::string& id, const Caller& caller) const {
  BRAID_ASSIGN_OR_RETURN(JobRecord job, jobs_->scheduler().Get(id));
  return caller.Sees(job.model) ? absl::StatusOr<JobRecord>(std::move(job)) : NoJob(id);
}

absl::StatusOr<JobRecord> JobService::FindOwn(const std::string& id, const Caller& caller) const {
  BRAID_ASSIGN_OR_RETURN(JobRecord job, Find(id, caller));
  BRAID_RETURN_IF_ERROR(
      caller.Require(job.kind == JobKind::kTrain ? Role::kTrain : Role::kInfer, job.model));
  return job;
}

JobService::Reactor* JobService::SubmitJob(Context* context,
                                           const braid::v1::SubmitJobRequest* request,
                                           braid::v1::SubmitJobResponse* response) {
  return HandleOn(&submits_, context, "SubmitJob", request, response,
                  [this, context](const auto& message, auto* reply, UnaryCall& call) {
                    return Submit(*context, message, reply, call);
                  });
}

absl::Status JobService::Submit(const Context& context, const braid::v1::SubmitJobRequest& request,
                                braid::v1::SubmitJobResponse* response, UnaryCall& call) const {
  const CancelCheck check_cancelled = [&context] {
    return context.IsCancelled()
               ? absl::CancelledError("the client cancelled the call, or its deadline passed")
               : absl::OkStatus();
  };
  BRAID_RETURN_IF_ERROR(check_cancelled());  // The calls before this one may have taken long.
  std::string id = request.id();
  if (id.empty()) {
    id = request.dry_run() ? kNoId : RandomId();
  }
  BRAID_ASSIGN_OR_RETURN(const NewJob job,
                         MakeNewJob(id, request.spec(), call.caller().identity()));
  BRAID_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobSpec(id, request.spec()));
  if (request.dry_run()) {
    const absl::StatusOr<JobProgress> totals = jobs_->maker().Check(spec, check_cancelled);
    if (!totals.ok()) {
      return QualifyJobField(totals.status());
    }
    *response->mutable_job()->mutable_spec() = request.spec();
    WriteProgress(*totals, response->mutable_job()->mutable_progress());
    return absl::OkStatus();
  }
  // A retry is not checked again: the data may be gone, the output may exist.
  if (absl::IsNotFound(jobs_->store().Get(id).status())) {
    BRAID_RETURN_IF_ERROR(QualifyJobField(jobs_->maker().Check(spec, check_cancelled).status()));
    BRAID_RETURN_IF_ERROR(check_cancelled());
  }
  BRAID_ASSIGN_OR_RETURN(const JobRecord record, jobs_->scheduler().Submit(job));
  if (record.identity != job.identity) {
    return absl::AlreadyExistsError(
        absl::StrCat("id: '", id, "' belongs to another caller (choose a different ID)"));
  }
  call.RecordAudit("id", record.id);
  WriteJob(record, response->mutable_job());
  return absl::OkStatus();
}

JobService::Reactor* JobService::GetJob(Context* context, const braid::v1::GetJobRequest* request,
                                        braid::v1::GetJobResponse* response) {
  return Handle(context, "GetJob", request, response,
                [this](const auto& message, auto* reply, UnaryCall& call) -> absl::Status {
                  BRAID_ASSIGN_OR_RETURN(const JobRecord job, Find(message.id(), call.caller()));
                  WriteJob(job, reply->mutable_job());
                  return absl::OkStatus();
                });
}

JobService::Reactor* JobService::ListJobs(Context* context,
                                          const braid::v1::ListJobsRequest* request,
                                          braid::v1::ListJobsResponse* response) {
  return Handle(context, "ListJobs", request, response,
                [this](const auto& message, auto* reply, UnaryCall& call) {
                  return List(message, reply, call.caller());
                });
}

absl::Status JobService::List(const braid::v1::ListJobsRequest& request,
                              braid::v1::ListJobsResponse* response, const Caller& caller) const {
  BRAID_ASSIGN_OR_RETURN(JobFilter filter, ReadFilter(request));
  filter.sees_model = [&caller](const std::string& model) { return caller.Sees(model); };
  BRAID_ASSIGN_OR_RETURN(const int64_t size,
                         PageSize("page_size", request.page_size(), kDefaultPage, kMaxPage));
  const int64_t first = request.oldest_first() ? 0 : std::numeric_limits<int64_t>::max();
  BRAID_ASSIGN_OR_RETURN(const int64_t from, ReadToken(request.page_token(), first));
  BRAID_ASSIGN_OR_RETURN(JobPage page, request.oldest_first()
                                           ? jobs_->store().ListOldest(filter, size, from)
                                           : jobs_->store().ListNewest(filter, size, from));
  jobs_->scheduler().AddProgress(&page.jobs);
  for (const JobRecord& job : page.jobs) {
    WriteJob(job, response->add_jobs());
  }
  if (!page.complete) {
    response->set_next_page_token(absl::StrCat(page.jobs.back().number));
  }
  return absl::OkStatus();
}

grpc::ServerWriteReactor<braid::v1::WatchJobResponse>* JobService::WatchJob(
    Context* context, const braid::v1::WatchJobRequest* request) {
  return new JobWatch(jobs_, &watches_, rpc_, *context, *request);  // deletes itself
}

template <typename Request, typename Response>
JobService::Reactor* JobService::Change(
    Context* context, absl::string_view method, const Request* request, Response* response,
    absl::StatusOr<JobRecord> (JobScheduler::*change)(absl::string_view)) {
  return Handle(context, method, request, response,
                [this, change](const auto& message, auto* reply, UnaryCall& call) -> absl::Status {
                  BRAID_ASSIGN_OR_RETURN(const JobRecord own, FindOwn(message.id(), call.caller()));
                  call.RecordAudit("job_model", own.model);
                  BRAID_ASSIGN_OR_RETURN(const JobRecord job,
                                         (jobs_->scheduler().*change)(message.id()));
                  WriteJob(job, reply->mutable_job());
                  return absl::OkStatus();
                });
}

JobService::Reactor* JobService::PauseJob(Context* context,
                                          const braid::v1::PauseJobRequest* request,
                                          braid::v1::PauseJobResponse* response) {
  return Change(context, "PauseJob", request, response, &JobScheduler::Pause);
}

JobService::Reactor* JobService::ResumeJob(Context* context,
                                           const braid::v1::ResumeJobRequest* request,
                                           braid::v1::ResumeJobResponse* response) {
  return Change(context, "ResumeJob", request, response, &JobScheduler::Resume);
}

JobService::Reactor* JobService::CancelJob(Context* context,
                                           const braid::v1::CancelJobRequest* request,
                                           braid::v1::CancelJobResponse* response) {
  return Change(context, "CancelJob", request, response, &JobScheduler::Cancel);
}

JobService::Reactor* JobService::DeleteJob(Context* context,
                                           const braid::v1::DeleteJobRequest* request,
                                           braid::v1::DeleteJobResponse* response) {
  return Handle(context, "DeleteJob", request, response,
                [this](const auto& message, auto*, UnaryCall& call) -> absl::Status {
                  BRAID_ASSIGN_OR_RETURN(const JobRecord own, FindOwn(message.id(), call.caller()));
                  call.RecordAudit("job_model", own.model);
                  return jobs_->scheduler().Remove(message.id());
                });
}

JobService::Reactor* JobService::GetJobMetrics(Context* context,
                                               const braid::v1::GetJobMetricsRequest* request,
                                               braid::v1::GetJobMetricsResponse* response) {
  return Handle(
      context, "GetJobMetrics", request, response,
      [this](const auto& message, auto* reply, UnaryCall& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(Find(message.id(), call.caller()).status());
        BRAID_RETURN_IF_ERROR(CheckNotNegative("first_step", message.first_step()));
        const std::vector<std::string> names(message.names().begin(), message.names().end());
        BRAID_ASSIGN_OR_RETURN(
            const JobMetricPage page,
            jobs_->store().Metrics(message.id(), names, message.first_step(), kMaxMetricValues));
        WriteMetrics(page, reply);
        return absl::OkStatus();
      });
}

JobService::Reactor* JobService::GetJobLogs(Context* context,
                                            const braid::v1::GetJobLogsRequest* request,
                                            braid::v1::GetJobLogsResponse* response) {
  return Handle(context, "GetJobLogs", request, response,
                [this](const auto& message, auto* reply, UnaryCall& call) -> absl::Status {
                  BRAID_RETURN_IF_ERROR(Find(message.id(), call.caller()).status());
                  BRAID_RETURN_IF_ERROR(CheckNotNegative("after", message.after()));
                  BRAID_ASSIGN_OR_RETURN(
                      const int64_t lines,
                      PageSize("max_lines", message.max_lines(), kDefaultLines, kMaxLines));
                  BRAID_ASSIGN_OR_RETURN(const std::vector<JobLogLine> log,
                                         jobs_->store().Logs(message.id(), message.after(), lines));
                  for (const JobLogLine& line : log) {
                    WriteLogLine(line, reply->add_lines());
                  }
                  return absl::OkStatus();
                });
}

}  // namespace braid
