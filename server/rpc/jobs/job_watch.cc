#include "server/rpc/jobs/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/status.h"
#include "server/rpc/jobs/job_messages.h"

namespace braid {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);

}  // namespace

JobWatch::JobWatch(const Jobs* jobs, JobWatches* watches, const RpcContext& rpc,
                   const grpc::CallbackServerContext& context,
                   const braid::v1::WatchJobRequest& request)
    : jobs_(jobs),
      watches_(watches),
      rpc_(rpc),
      id_(request.id()),
      self_(this),
      last_transition_(request.after()),
      record_(rpc.metrics, "WatchJob"),
      caller_(rpc.access, context, "WatchJob") {
  {
    const absl::MutexLock lock(&mu_);
    absl::Status allowed = caller_.Check(request);
    if (allowed.ok()) {
      allowed = rpc_.admission->CheckOpen();
    }
    if (allowed.ok()) {
      allowed = jobs_->error();
    }
    if (allowed.ok()) {
      allowed = rpc_.streams->Add(self_, caller_.client());
    }
    if (!allowed.ok()) {
      End(allowed);
      return;
    }
  }
  watches_->Add(self_);
}

JobWatch::~JobWatch() {
  if (watcher_ != 0) {
    jobs_->scheduler().Unwatch(watcher_);
  }
  rpc_.streams->Remove(this);
}

void JobWatch::Advance() {
  {
    const absl::MutexLock lock(&mu_);
    if (writing_ || ended_) {
      return;
    }
  }
  const absl::StatusOr<bool> filled = FillNext();
  const absl::MutexLock lock(&mu_);
  if (ended_) {
    return;
  }
  if (!filled.ok()) {
    End(filled.status());
  } else if (*filled) {
    writing_ = true;
    StartWrite(&event_);
  } else if (complete_) {
    End(absl::OkStatus());
  }
}

absl::StatusOr<bool> JobWatch::FillNext() {
  if (complete_) {
    return false;
  }
  if (watcher_ == 0) {
    watcher_ = jobs_->scheduler().Watch(id_, [watches = watches_] { watches->Wake(); });
  }
  BRAID_ASSIGN_OR_RETURN(const JobRecord job, FindJob());
  BRAID_ASSIGN_OR_RETURN(const std::vector<JobTransition> transitions, NewTransitions());
  event_.Clear();
  if (!transitions.empty()) {
    const JobTransition& next = transitions.front();
    last_transition_ = next.number;
    complete_ = HasEnded(next.to);
    WriteTransition(next, event_.mutable_transition());
  } else if (HasEnded(job.state)) {
    complete_ = true;  // The client has seen the last transition in an earlier call.
    return false;
  } else if (job.progress != sent_progress_) {
    sent_progress_ = job.progress;
    WriteProgress(job.progress, event_.mutable_progress());
  } else {
    return false;
  }
  event_.set_event(last_transition_);
  return true;
}

absl::StatusOr<std::vector<JobTransition>> JobWatch::NewTransitions() {
  if (!checked_after_) {
    checked_after_ = true;
    BRAID_ASSIGN_OR_RETURN(const std::vector<JobTransition> all,
                           jobs_->store().Transitions(id_, 0));
    if (last_transition_ < 0 || last_transition_ > all.back().number) {
      return InvalidField("after", absl::StrCat(last_transition_,
                                                " is not an event of the job "
                                                "(expected 0 to ",
                                                all.back().number, ")"));
    }
  }
  return jobs_->store().Transitions(id_, last_transition_);
}

absl::StatusOr<JobRecord> JobWatch::FindJob() {
  BRAID_ASSIGN_OR_RETURN(JobRecord job, jobs_->scheduler().Get(id_));
  const absl::MutexLock lock(&mu_);
  return caller_.Sees(job.model) ? absl::StatusOr<JobRecord>(std::move(job)) : NoJob(id_);
}

void JobWatch::BeginClose(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  if (!ended_) {
    End(status);
  }
}

void JobWatch::OnWriteDone(bool ok) {
  {
    const absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && !ended_) {
      End(absl::CancelledError("the client disconnected or cancelled the call"));
    }
  }
  watches_->Wake();
}

void JobWatch::OnCancel() {
  const absl::MutexLock lock(&mu_);
  if (!ended_) {
    End(absl::CancelledError("the client disconnected or cancelled the call"));
  }
}

void JobWatch::OnDone() {
  watches_->Remove(this);
  self_.reset();
}

void JobWatch::End(const absl::Status& status) {
  ended_ = true;
  caller_.Audit(status);
  Finish(record_.End(status, caller_, caller_.model()));
}

JobWatches::JobWatches() : thread_([this] { Run(); }) {}

JobWatches::~JobWatches() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void JobWatches::Add(std::shared_ptr<JobWatch> watch) {
  const absl::MutexLock lock(&mu_);
  watches_.insert(std::move(watch));
  woken_ = true;
}

void JobWatches::Remove(const JobWatch* watch) {
  std::shared_ptr<JobWatch> removed;  // released after the lock
  const absl::MutexLock lock(&mu_);
  const auto found = std::ranges::find_if(
      watches_, [watch](const std::shared_ptr<JobWatch>& other) { return other.get() == watch; });
  if (found != watches_.end()) {
    removed = *found;
    watches_.erase(found);
  }
}

void JobWatches::Wake() {
  const absl::MutexLock lock(&mu_);
  woken_ = true;
}

void JobWatches::Run() {
  const auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return woken_ || stop_; };
  while (true) {
    std::vector<std::shared_ptr<JobWatch>> watches;
    {
      const absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&woken));
      if (stop_) {
        return;
      }
      woken_ = false;
      watches.assign(watches_.begin(), watches_.end());
    }
    for (const std::shared_ptr<JobWatch>& watch : watches) {
      watch->Advance();
    }
    watches.clear();
    const absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&stop_), kInterval);
  }
}

}  // namespace braid
