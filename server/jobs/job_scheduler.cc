#include "server/jobs/job_scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::Duration kRetryInterval = absl::Seconds(10);
constexpr absl::Duration kExpiryInterval = absl::Hours(1);
constexpr absl::Duration kLeastRetention = absl::Minutes(10);
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string ErrorText(const absl::Status& status) {
  return absl::StrCat(status.message(), " (", absl::StatusCodeToString(status.code()), ")");
}

JobMove MoveTo(JobState to, std::string reason) {
  JobMove move;
  move.to = to;
  move.reason = std::move(reason);
  return move;
}

// Returns the change that follows from the result of Job::Run().
JobMove Outcome(JobStop stop, const absl::StatusOr<JobResult>& result) {
  if (result.ok()) {
    JobMove move = MoveTo(JobState::kSucceeded, "");
    move.result = *result;
    return move;
  }
  if (stop == JobStop::kCancel) {
    return MoveTo(JobState::kCancelled, "cancelled by a user");
  }
  if (stop == JobStop::kDrain && absl::IsCancelled(result.status())) {
    return MoveTo(JobState::kQueued, "the server was shut down");
  }
  return MoveTo(JobState::kFailed, ErrorText(result.status()));
}

// Returns the change of a job that was interrupted. `what`: "the server crashed".
JobMove AfterCrash(const JobRecord& job, bool cancel_requested, absl::string_view what,
                   int64_t max_crashes) {
  if (cancel_requested) {
    return MoveTo(JobState::kCancelled, "cancelled by a user");
  }
  const int64_t crashes = job.crashes + 1;
  JobMove move =
      crashes < max_crashes
          ? MoveTo(JobState::kQueued, absl::StrCat(what, " while the job ran"))
          : MoveTo(JobState::kFailed, absl::StrCat(what, " while the job ran, ", crashes,
                                                   " times in a row without durable progress in "
                                                   "between"));
  move.crashed = true;
  return move;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobScheduler>> JobScheduler::Start(
    JobStore* store, JobFactory* factory, const Clock* clock, const JobSchedulerOptions& options) {
  auto scheduler = std::unique_ptr<JobScheduler>(new JobScheduler(store, factory, clock, options));
  BRAID_RETURN_IF_ERROR(scheduler->Recover());
  scheduler->RemoveExpired();
  for (int64_t i = 0; i < options.max_running; ++i) {
    scheduler->threads_.emplace_back(&JobScheduler::RunJobs, scheduler.get());
  }
  return scheduler;
}

JobScheduler::~JobScheduler() {
  RequestStop();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

absl::Status JobScheduler::Recover() {
  JobFilter filter;
  // A queued job is cancelled if the request came while it was returned to the queue.
  filter.states = {JobState::kRunning, JobState::kQueued};
  BRAID_ASSIGN_OR_RETURN(const JobPage page, store_->ListOldest(filter, kNoLimit));
  for (const JobRecord& job : page.jobs) {
    if (job.state == JobState::kQueued && !job.cancel_requested) {
      continue;
    }
    const JobMove move =
        AfterCrash(job, job.cancel_requested, "the server crashed", options_.max_crashes);
    if (HasEnded(move.to)) {
      CleanUp(job);
    }
    BRAID_RETURN_IF_ERROR(store_->Move(job.id, move).status());
    Log(LogModule::kJobs)
        .info("job {}: {} ({})", job.id, std::string(JobStateName(move.to)), move.reason);
  }
  return absl::OkStatus();
}

absl::StatusOr<JobRecord> JobScheduler::Submit(const NewJob& job) {
  const absl::MutexLock lock(&mu_);
  if (!store_->Get(job.id).ok()) {  // A retry is answered even if the queue is full.
    BRAID_ASSIGN_OR_RETURN(const int64_t queued, store_->CountQueued());
    if (queued >= options_.max_queued) {
      return absl::ResourceExhaustedError(absl::StrCat(
          queued, " jobs are already waiting (limit: --max_queued_jobs=", options_.max_queued,
          "); try again later"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(JobRecord record, store_->Add(job));
  may_have_work_ = true;
  return record;
}

absl::StatusOr<JobRecord> JobScheduler::Get(absl::string_view id) const {
  BRAID_ASSIGN_OR_RETURN(JobRecord record, store_->Get(id));
  std::vector<JobRecord> jobs = {std::move(record)};
  AddProgress(&jobs);
  return std::move(jobs.front());
}

void JobScheduler::AddProgress(std::vector<JobRecord>* jobs) const {
  const absl::MutexLock lock(&mu_);
  for (JobRecord& job : *jobs) {
    const auto found = running_.find(job.id);
    if (job.state == JobState::kRunning && found != running_.end()) {
      job.progress = found->second->progress();
    }
  }
}

std::vector<JobRecord> JobScheduler::Running() const {
  const absl::MutexLock lock(&mu_);
  std::vector<JobRecord> jobs;
  for (const auto& [id, running] : running_) {
    jobs.push_back(running->record());
    jobs.back().progress = running->progress();
  }
  return jobs;
}

absl::StatusOr<JobRecord> JobScheduler::Cancel(absl::string_view id) {
  std::optional<JobRecord> waiting;
  {
    const absl::MutexLock lock(&mu_);
    BRAID_ASSIGN_OR_RETURN(JobRecord job, store_->Get(id));
    if (HasEnded(job.state)) {
      return job;
    }
    if (const auto found = running_.find(id); found != running_.end()) {
      BRAID_RETURN_IF_ERROR(store_->RequestCancel(id));
      found->second->RequestStop(JobStop::kCancel);
    } else {
      BRAID_ASSIGN_OR_RETURN(waiting,
                             store_->Move(id, MoveTo(JobState::kCancelled, "cancelled by a user")));
    }
  }
  if (waiting.has_value() && waiting->attempts > 0) {
    CleanUp(*waiting);
  }
  Notify(id);
  return Get(id);
}

absl::Status JobScheduler::Remove(absl::string_view id) {
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, store_->Get(id));
  if (HasEnded(job.state)) {  // Else the store refuses.
    BRAID_RETURN_IF_ERROR(factory_->Remove(job));
  }
  BRAID_RETURN_IF_ERROR(store_->Remove(id));
  Notify(id);
  return absl::OkStatus();
}

int64_t JobScheduler::Watch(absl::string_view id, Watcher watcher) {
  const absl::MutexLock lock(&watchers_mu_);
  watchers_[++last_watcher_] = {std::string(id), std::move(watcher)};
  return last_watcher_;
}

void JobScheduler::Unwatch(int64_t number) {
  const absl::MutexLock lock(&watchers_mu_);
  watchers_.erase(number);
}

void JobScheduler::Notify(absl::string_view id) {
  const absl::MutexLock lock(&watchers_mu_);
  for (const auto& [number, watcher] : watchers_) {
    if (watcher.first == id) {
      watcher.second();
    }
  }
}

void JobScheduler::RequestStop() {
  const absl::MutexLock lock(&mu_);
  draining_ = true;
  for (const auto& [id, running] : running_) {
    running->RequestStop(JobStop::kDrain);
  }
}

bool JobScheduler::Drain(absl::Time deadline) {
  RequestStop();
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return running_.empty(); };
  const absl::MutexLock lock(&mu_);
  return mu_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

void JobScheduler::RunJobs() {
  while (const std::shared_ptr<RunningJob> running = TakeNext()) {
    Notify(running->record().id);
    const JobMove move = Execute(running.get());
    Finish(running.get(), move);
    Notify(running->record().id);
    RemoveExpired();
  }
}

std::shared_ptr<RunningJob> JobScheduler::TakeNext() {
  const auto ready = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return draining_ || may_have_work_; };
  while (true) {
    if (!mu_.LockWhenWithTimeout(absl::Condition(&ready), kExpiryInterval)) {
      mu_.Unlock();
      RemoveExpired();
      continue;
    }
    if (draining_) {
      mu_.Unlock();
      return nullptr;
    }
    absl::StatusOr<std::shared_ptr<RunningJob>> running = StartNext();
    if (!running.ok()) {
      Log(LogModule::kJobs)
          .error("jobs: cannot start the next job: {}", std::string(running.status().message()));
      mu_.AwaitWithTimeout(absl::Condition(&draining_), kRetryInterval);
    }
    mu_.Unlock();
    if (running.ok() && *running != nullptr) {
      return *std::move(running);
    }
  }
}

absl::StatusOr<std::shared_ptr<RunningJob>> JobScheduler::StartNext() {
  BRAID_ASSIGN_OR_RETURN(const std::optional<JobRecord> next, store_->NextQueued());
  if (!next.has_value()) {
    may_have_work_ = false;
    return std::shared_ptr<RunningJob>();
  }
  BRAID_ASSIGN_OR_RETURN(JobRecord record, store_->Move(next->id, MoveTo(JobState::kRunning, "")));
  const std::string id = record.id;
  auto running =
      std::make_shared<RunningJob>(std::move(record), store_, clock_, [this, id] { Notify(id); });
  running_[id] = running;
  return running;
}

JobMove JobScheduler::Execute(RunningJob* running) {
  const absl::StatusOr<std::unique_ptr<Job>> job = factory_->Make(running->record());
  const absl::StatusOr<JobResult> result = job.ok() ? (*job)->Run(running) : job.status();
  JobMove move = Outcome(running->stop(), result);
  if (absl::IsUnavailable(result.status()) && options_.device_lost != nullptr &&
      options_.device_lost()) {
    RequestStop();  // Other jobs would fail, too, until the server is restarted.
    absl::StatusOr<JobRecord> record = store_->Get(running->record().id);
    move =
        AfterCrash(record.ok() ? *record : running->record(), running->stop() == JobStop::kCancel,
                   "a device was lost", options_.max_crashes);
  }
  if (job.ok() && HasEnded(move.to)) {
    (*job)->CleanUp();
  }
  if (move.to == JobState::kFailed) {
    running->AddLog(JobLogLevel::kError, move.reason);
  }
  return move;
}

void JobScheduler::Finish(RunningJob* running, const JobMove& move) {
  const std::string id = running->record().id;
  while (true) {
    absl::Status status = running->Flush();
    const absl::MutexLock lock(&mu_);
    if (status.ok()) {
      status = store_->Move(id, move).status();
    }
    if (status.ok()) {
      Log(LogModule::kJobs)
          .info("job {}: {}{}", id, std::string(JobStateName(move.to)),
                move.reason.empty() ? "" : absl::StrCat(" (", move.reason, ")"));
    }
    if (status.ok() || mu_.AwaitWithTimeout(absl::Condition(&draining_), kRetryInterval)) {
      running_.erase(id);
      may_have_work_ = may_have_work_ || move.to == JobState::kQueued;
      return;
    }
    Log(LogModule::kJobs)
        .error("job {}: cannot record that it is {}: {}", id, std::string(JobStateName(move.to)),
               std::string(status.message()));
  }
}

void JobScheduler::CleanUp(const JobRecord& record) {
  const absl::StatusOr<std::unique_ptr<Job>> job = factory_->Make(record);
  if (job.ok()) {
    (*job)->CleanUp();
  } else {
    Log(LogModule::kJobs)
        .warn("job {}: cannot free what it holds: {}", record.id,
              std::string(job.status().message()));
  }
}

void JobScheduler::RemoveExpired() {
  // Long enough for clients that wait for the end.
  const absl::Duration retention = std::max(options_.retention, kLeastRetention);
  const absl::StatusOr<std::vector<std::string>> expired =
      store_->EndedBefore(clock_->Now() - retention);
  if (!expired.ok()) {
    return;  // The next call of the store that matters reports it.
  }
  for (const std::string& id : *expired) {
    if (const absl::Status status = Remove(id); !status.ok()) {
      Log(LogModule::kJobs)
          .warn("job {}: cannot remove its record: {}", id, std::string(status.message()));
    }
  }
}

}  // namespace braid
