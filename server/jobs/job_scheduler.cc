#include "server/jobs/job_scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr absl::Duration kRetryInterval = absl::Seconds(10);
constexpr absl::Duration kExpiryInterval = absl::Hours(1);
constexpr absl::Duration kLeastRetention = absl::Minutes(10);
// Reasons of transitions.
constexpr absl::string_view kCancelled = "cancelled by a user";
constexpr absl::string_view kPaused = "paused by a user";
constexpr absl::string_view kResumed = "resumed by a user";
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
JobMove Outcome(const JobStopRequest& request, const absl::StatusOr<JobResult>& result) {
  if (result.ok()) {
    JobMove move = MoveTo(JobState::kSucceeded, result->reason);
    move.result = *result;
    return move;
  }
  if (request.stop == JobStop::kCancel) {
    return MoveTo(JobState::kCancelled, request.why);
  }
  if (request.stop != JobStop::kNone && absl::IsCancelled(result.status())) {
    return MoveTo(request.stop == JobStop::kPause ? JobState::kPaused : JobState::kQueued,
                  request.why);
  }
  JobMove move = MoveTo(JobState::kFailed, ErrorText(result.status()));
  move.error = result.status().code();
  return move;
}

// Returns the change of a job that was interrupted. `what`: "the server crashed".
JobMove AfterCrash(const JobRecord& job, absl::string_view what, int64_t max_crashes) {
  if (job.cancel_requested) {
    return MoveTo(JobState::kCancelled, std::string(kCancelled));
  }
  const int64_t crashes = job.crashes + 1;
  JobMove move = MoveTo(JobState::kQueued, absl::StrCat(what, " while the job ran"));
  if (crashes >= max_crashes) {
    move = MoveTo(JobState::kFailed,
                  absl::StrCat(move.reason, ", ", crashes,
                               " times in a row without durable progress in between"));
    move.error = absl::StatusCode::kAborted;
  } else if (job.pause_requested) {
    move = MoveTo(JobState::kPaused, std::string(kPaused));
  }
  move.crashed = true;
  return move;
}

absl::Status HasEndedError(const JobRecord& job, absl::string_view action) {
  return absl::FailedPreconditionError(
      absl::StrCat("id: job '", job.id, "' is ", JobStateName(job.state), " and cannot be ", action,
                   " (expected a job that has not ended)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobScheduler>> JobScheduler::Start(
    JobStore* store, JobFactory* factory, const Clock* clock, Metrics* metrics,
    const JobSchedulerOptions& options) {
  auto scheduler =
      std::unique_ptr<JobScheduler>(new JobScheduler(store, factory, clock, metrics, options));
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
    const JobMove move = AfterCrash(job, "the server crashed", options_.max_crashes);
    if (HasEnded(move.to)) {
      CleanUp(job);
    }
    BRAID_RETURN_IF_ERROR(Move(job.id, move).status());
    Log(LogModule::kJobs)
        .info("job {}: {} ({})", job.id, std::string(JobStateName(move.to)), move.reason);
  }
  return absl::OkStatus();
}

absl::StatusOr<JobRecord> JobScheduler::Submit(const NewJob& job) {
  const absl::MutexLock lock(&mu_);
  if (!store_->Get(job.id).ok()) {  // A retry is answered even if the queue is full.
    BRAID_ASSIGN_OR_RETURN(const int64_t waiting, store_->CountWaiting());
    if (waiting >= options_.max_queued) {
      return absl::ResourceExhaustedError(
          absl::StrCat(waiting, " jobs are already waiting or paused (limit: --max_queued_jobs=",
                       options_.max_queued, "); try again later"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(JobRecord record, store_->Add(job));
  OnQueued();
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

std::vector<std::shared_ptr<const RunningJob>> JobScheduler::Running() const {
  const absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const RunningJob>> jobs;
  for (const auto& [id, running] : running_) {
    jobs.push_back(running);
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
      found->second->RequestStop(JobStop::kCancel, kCancelled);
    } else {
      BRAID_ASSIGN_OR_RETURN(waiting,
                             Move(id, MoveTo(JobState::kCancelled, std::string(kCancelled))));
      may_have_work_ = true;  // It may have been the next of its identity.
    }
  }
  if (waiting.has_value() && waiting->attempts > 0) {
    CleanUp(*waiting);
  }
  Notify(id);
  return Get(id);
}

absl::StatusOr<JobRecord> JobScheduler::Pause(absl::string_view id) {
  {
    const absl::MutexLock lock(&mu_);
    BRAID_ASSIGN_OR_RETURN(const JobRecord job, store_->Get(id));
    if (HasEnded(job.state)) {
      return HasEndedError(job, "paused");
    }
    if (const auto found = running_.find(id); found != running_.end()) {
      BRAID_RETURN_IF_ERROR(store_->RequestPause(id, true));
      found->second->RequestStop(JobStop::kPause, kPaused);
    } else if (job.state != JobState::kPaused) {
      BRAID_RETURN_IF_ERROR(Move(id, MoveTo(JobState::kPaused, std::string(kPaused))).status());
      may_have_work_ = true;  // It may have been the next of its identity.
    }
  }
  Notify(id);
  return Get(id);
}

absl::StatusOr<JobRecord> JobScheduler::Resume(absl::string_view id) {
  {
    const absl::MutexLock lock(&mu_);
    BRAID_ASSIGN_OR_RETURN(const JobRecord job, store_->Get(id));
    if (HasEnded(job.state)) {
      return HasEndedError(job, "resumed");
    }
    if (const auto found = running_.find(id); found != running_.end()) {
      BRAID_RETURN_IF_ERROR(store_->RequestPause(id, false));
      found->second->WithdrawPause(kResumed);
    } else if (job.state == JobState::kPaused) {
      BRAID_RETURN_IF_ERROR(Move(id, MoveTo(JobState::kQueued, std::string(kResumed))).status());
      OnQueued();
    }
  }
  Notify(id);
  return Get(id);
}

absl::Status JobScheduler::Remove(absl::string_view id) {
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, store_->Get(id));
  if (HasEnded(job.state)) {  // Else the store refuses.
    BRAID_RETURN_IF_ERROR(factory_->Remove(job));
    if (options_.tracking != nullptr) {
      options_.tracking->Remove(Tracking::JobFolder(id));
    }
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
    running->RequestStop(JobStop::kDrain, "the server was shut down");
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
    Execute(running.get());
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
  BRAID_ASSIGN_OR_RETURN(const std::vector<QueuedJob> queued, store_->Queued());
  const JobSlots slots = AssignSlots(RunningOn(), queued, Limits());
  const auto next = std::ranges::find_if(slots.start, [&](const std::string& id) {
    mu_.AssertHeld();
    return MayStart(*std::ranges::find(queued, id, &QueuedJob::id));
  });
  if (next == slots.start.end()) {
    may_have_work_ = false;
    return std::shared_ptr<RunningJob>();
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<JobTransition> transitions,
                         store_->Transitions(*next, 0));
  BRAID_ASSIGN_OR_RETURN(JobRecord record, Move(*next, MoveTo(JobState::kRunning, "")));
  metrics_.RecordQueued(JobKindName(record.kind), clock_->Now() - transitions.back().time);
  const std::string id = record.id;
  auto running = std::make_shared<RunningJob>(
      std::move(record), store_, clock_, &metrics_,
      options_.tracking == nullptr ? nullptr : options_.tracking->Open(Tracking::JobFolder(id)),
      [this, id] { Notify(id); });
  running_[id] = running;
  return running;
}

void JobScheduler::OnQueued() {
  may_have_work_ = true;
  if (draining_) {
    return;
  }
  const absl::StatusOr<std::vector<QueuedJob>> queued = store_->Queued();
  if (!queued.ok()) {
    Log(LogModule::kJobs)
        .error("jobs: cannot decide which jobs run: {}", std::string(queued.status().message()));
    return;
  }
  for (const Preemption& preemption : AssignSlots(RunningOn(), *queued, Limits()).preempt) {
    running_.find(preemption.job)
        ->second->RequestStop(JobStop::kPreempt,
                              absl::StrCat("preempted by job '", preemption.by, "' of priority ",
                                           preemption.priority));
  }
}

JobLimits JobScheduler::Limits() const {
  return {options_.max_running, options_.max_running_per_identity};
}

std::vector<QueuedJob> JobScheduler::RunningOn() const {
  std::vector<const JobRecord*> records;
  for (const auto& [id, running] : running_) {
    if (running->stop() == JobStop::kNone) {
      records.push_back(&running->record());
    }
  }
  std::ranges::sort(records, {}, &JobRecord::number);
  std::vector<QueuedJob> jobs;
  for (const JobRecord* record : records) {
    jobs.push_back({record->id, record->identity, record->priority});
  }
  return jobs;
}

bool JobScheduler::MayStart(const QueuedJob& job) const {
  return options_.max_running_per_identity == 0 ||
         std::ranges::count_if(running_, [&](const auto& entry) {
           return entry.second->record().identity == job.identity;
         }) < options_.max_running_per_identity;
}

void JobScheduler::Execute(RunningJob* running) {
  const absl::StatusOr<std::unique_ptr<Job>> job = factory_->Make(running->record());
  const absl::StatusOr<JobResult> result = job.ok() ? (*job)->Run(running) : job.status();
  const bool lost = absl::IsUnavailable(result.status()) && options_.device_lost != nullptr &&
                    options_.device_lost();
  if (lost) {
    RequestStop();  // Other jobs would fail, too, until the server is restarted.
  }
  bool ended = false;
  bool recorded = false;
  while (!recorded) {  // A user may cancel, pause or resume the job meanwhile.
    const JobStopRequest request = running->stop_request();
    const JobMove move = lost ? AfterLoss(*running) : Outcome(request, result);
    if (HasEnded(move.to) && !ended) {
      ended = true;
      if (job.ok()) {
        (*job)->CleanUp();
      }
      if (move.to == JobState::kFailed) {
        running->AddLog(JobLogLevel::kError, move.reason);
      }
    }
    recorded = Finish(running, request, move);
  }
}

JobMove JobScheduler::AfterLoss(const RunningJob& running) const {
  const absl::StatusOr<JobRecord> stored = store_->Get(running.record().id);
  JobRecord job = stored.ok() ? *stored : running.record();
  job.cancel_requested = running.stop() == JobStop::kCancel;
  job.pause_requested = running.stop() == JobStop::kPause;
  return AfterCrash(job, "a device was lost", options_.max_crashes);
}

bool JobScheduler::Finish(RunningJob* running, const JobStopRequest& request, const JobMove& move) {
  const std::string id = running->record().id;
  absl::Status status = running->Flush();
  const absl::MutexLock lock(&mu_);
  if (running->stop_request() != request) {
    return false;
  }
  if (status.ok()) {
    status = Move(id, move).status();
  }
  if (status.ok()) {
    // A withdrawn pause returns the job to the queue in the same way.
    if (move.to == JobState::kQueued && request.stop == JobStop::kPreempt &&
        request.why != kResumed) {
      metrics_.CountPreemption(JobKindName(running->record().kind));
    }
    Log(LogModule::kJobs)
        .info("job {}: {}{}", id, std::string(JobStateName(move.to)),
              move.reason.empty() ? "" : absl::StrCat(" (", move.reason, ")"));
    if (!HasEnded(move.to)) {
      const absl::Status stored = store_->AddLog(id, JobLogLevel::kInfo, move.reason);
      if (!stored.ok()) {
        Log(LogModule::kJobs)
            .warn("job {}: log line not stored: {}", id, std::string(stored.message()));
      }
    }
  } else {
    Log(LogModule::kJobs)
        .error("job {}: cannot record that it is {}: {}", id, std::string(JobStateName(move.to)),
               std::string(status.message()));
    if (!mu_.AwaitWithTimeout(absl::Condition(&draining_), kRetryInterval)) {
      return false;
    }
  }
  running_.erase(id);
  OnQueued();
  return true;
}

absl::StatusOr<JobRecord> JobScheduler::Move(absl::string_view id, const JobMove& move) {
  BRAID_ASSIGN_OR_RETURN(JobRecord job, store_->Move(id, move));
  const absl::string_view kind = JobKindName(job.kind);
  if (move.to == JobState::kPaused) {
    metrics_.CountPause(kind);
  }
  if (move.to == JobState::kFailed) {
    metrics_.CountFailure(kind, move.error);
  }
  if (HasEnded(move.to) && job.attempts > 0) {
    metrics_.RecordEnd(kind, absl::AsciiStrToLower(JobStateName(move.to)), job.ended - job.started);
  }
  return job;
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
