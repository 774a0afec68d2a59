#include "client/cpp/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/call.h"
#include "client/cpp/messages.h"

namespace braid::client {
namespace {

absl::Status AbandonedError() { return absl::CancelledError("stream: abandoned"); }

}  // namespace

Pipeline::Pipeline(Handle& handle, size_t depth, absl::Duration timeout)
    : handle_(handle),
      depth_(depth),
      timeout_(timeout),
      log_(&handle.log()),
      last_sent_(handle.last_applied()),
      thread_([this] {
        if (absl::Status failure = Run(); !failure.ok()) Fail(failure);
      }) {}

Pipeline::~Pipeline() { Abandon(); }

void Pipeline::Submit(v1::StreamRequest operation, Callback callback) {
  absl::Status status;
  {
    const absl::MutexLock submitting(&submit_mu_);
    status = Enqueue(operation, callback);
  }
  if (!status.ok()) {
    callback(std::move(status));
    return;
  }
  std::shared_ptr<StreamCall> call;
  {
    const absl::MutexLock lock(&mu_);
    call = call_;
  }
  if (call != nullptr) call->Pump();
}

absl::StatusOr<Handle::Moment> Pipeline::Resync(absl::Time deadline) {
  while (true) {
    const Handle::Progress before = progress();
    absl::StatusOr<Handle::TrainerSnapshot> snapshot =
        handle_.FetchTrainer(before.retains, deadline);
    if (!snapshot.ok()) return snapshot.status();
    if (absl::Status status = CheckLastOperator(snapshot->info); !status.ok()) return status;
    if (snapshot->info.applied_sequence() >= before.sequence) return snapshot->requested_at;
    absl::StatusOr<std::shared_ptr<StreamCall>> call = StartReplay(before.sequence);
    if (!call.ok()) return call.status();
    if (*call != nullptr) (*call)->Cancel();
    const absl::MutexLock lock(&mu_);
    auto replayed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return !open_ || (!replaying_ && handle_.last_applied() >= before.sequence);
    };
    if (!mu_.AwaitWithDeadline(absl::Condition(&replayed), deadline)) {
      return absl::DeadlineExceededError("timed out while lost operations were being replayed");
    }
  }
}

absl::StatusOr<std::shared_ptr<StreamCall>> Pipeline::StartReplay(int64_t delivered) {
  const absl::MutexLock lock(&mu_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (handle_.last_applied() < delivered) return nullptr;
  replaying_ = true;
  last_progress_ = absl::Now();
  disconnected_since_ = absl::InfiniteFuture();
  return call_;
}

absl::Status Pipeline::CheckLastOperator(const v1::Trainer& info) {
  const absl::MutexLock lock(&mu_);
  return handle_.CheckLastOperator(info);
}

Handle::Progress Pipeline::progress() {
  const absl::MutexLock lock(&mu_);
  return {LastDelivered(), log_->retains()};
}

int64_t Pipeline::LastDelivered() const {
  return pending_.empty() ? log_->last() : pending_.front().sequence - 1;
}

absl::Status Pipeline::End() {
  std::shared_ptr<StreamCall> call;
  {
    const absl::MutexLock lock(&mu_);
    open_ = false;
    call = call_;
  }
  if (call != nullptr) call->Pump();
  if (thread_.joinable()) thread_.join();
  const absl::MutexLock lock(&mu_);
  return failure_;
}

void Pipeline::Abandon() {
  std::shared_ptr<StreamCall> call;
  {
    const absl::MutexLock lock(&mu_);
    open_ = false;
    abandoned_ = true;
    call = call_;
  }
  if (call != nullptr) call->Cancel();
  if (thread_.joinable()) thread_.join();
}

absl::Status Pipeline::Enqueue(v1::StreamRequest& operation, Callback& callback) {
  const size_t bytes = operation.ByteSizeLong();
  if (absl::Status status = WaitForCapacity(bytes); !status.ok()) return status;
  const absl::MutexLock lock(&mu_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  const int64_t sequence = log_->last() + 1;
  SetHeader(handle_.name(), handle_.MakeSender(sequence), sequence, &operation);
  if (absl::Status status = CheckSendable(operation.ByteSizeLong()); !status.ok()) return status;
  if (pending_.empty()) {
    last_progress_ = absl::Now();
    disconnected_since_ = absl::InfiniteFuture();
  }
  log_->Add(std::make_shared<const v1::StreamRequest>(std::move(operation)));
  pending_.push_back({sequence, std::move(callback)});
  return absl::OkStatus();
}

absl::Status Pipeline::WaitForCapacity(size_t bytes) {
  {
    const absl::MutexLock lock(&mu_);
    auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      if (!open_ || pending_.empty()) return true;
      return pending_.size() < depth_ && !log_->IsFull(bytes);
    };
    mu_.Await(absl::Condition(&free));
    if (absl::Status status = CheckOpen(); !status.ok()) return status;
    if (!log_->IsFull(bytes)) return absl::OkStatus();
  }
  // No reply is pending that could report a checkpoint, so requests one.
  absl::StatusOr<std::optional<int64_t>> durable = handle_.MakeDurable(timeout_);
  if (!durable.ok()) return durable.status();
  const absl::MutexLock lock(&mu_);
  handle_.TrimLog(*durable);
  return absl::OkStatus();
}

absl::Status Pipeline::CheckOpen() const {
  if (!failure_.ok()) return failure_;
  if (open_) return absl::OkStatus();
  return absl::FailedPreconditionError("stream: already finished");
}

StreamCall::Next Pipeline::NextToSend() {
  const absl::MutexLock lock(&mu_);
  if (!open_ && pending_.empty()) return {nullptr, true};
  if (next_reply_ <= barrier_ || next_send_ > log_->last()) return {};
  OperationLog::Operation operation = log_->Get(next_send_);
  // Only the reply has the version, and the server keeps only its last reply. Sending no operation
  // until the reply arrives keeps it available after a broken connection.
  if (operation->has_publish()) barrier_ = next_send_;
  last_sent_ = std::max(last_sent_, next_send_);
  ++next_send_;
  return {std::move(operation)};
}

absl::Status Pipeline::OnReply(v1::StreamResponse reply) {
  std::vector<std::pair<Callback, absl::StatusOr<Reply>>> results;
  {
    const absl::MutexLock lock(&mu_);
    if (next_reply_ >= next_send_) {
      return absl::InternalError("server: sent more replies than operations");
    }
    if (!IsReplyTo(reply, *log_->Get(next_reply_))) {
      return absl::InternalError(
          absl::StrCat("server: reply to operation ", next_reply_, " has the wrong kind"));
    }
    const int64_t sequence = next_reply_++;
    const v1::OperationStatus status = StatusOf(reply);
    handle_.set_last_applied(sequence);
    handle_.ClearUnanswered();
    handle_.OnContact(std::chrono::steady_clock::now());
    last_progress_ = absl::Now();
    disconnected_since_ = absl::InfiniteFuture();
    while (!pending_.empty() && pending_.front().sequence < sequence) {
      const OperationLog::Operation& lost = log_->Get(pending_.front().sequence);
      results.emplace_back(std::move(pending_.front().callback),
                           Reply{ReplyFromLater(*lost, status), true});
      pending_.pop_front();
    }
    if (!pending_.empty() && pending_.front().sequence == sequence) {
      results.emplace_back(std::move(pending_.front().callback), Reply{std::move(reply)});
      pending_.pop_front();
    }
    log_->Trim(sequence, status.durable_sequence());
    if (sequence >= LastDelivered()) replaying_ = false;
  }
  for (auto& [callback, result] : results) callback(std::move(result));
  return absl::OkStatus();
}

void Pipeline::OnEnd(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  ended_ = true;
  end_status_ = status;
}

absl::Status Pipeline::Run() {
  absl::Status ended;
  for (int attempts = 0;;) {
    absl::StatusOr<bool> work = WaitForWork(attempts, ended);
    if (!work.ok()) return work.status();
    if (!*work) return absl::OkStatus();
    const absl::Time begin = absl::Now();
    if (absl::Status end = RunConnection(&ended); !end.ok()) return end;
    const absl::MutexLock lock(&mu_);
    attempts = ended.ok() ? 0 : attempts + 1;
    if (last_progress_ > begin) attempts = std::min(attempts, 1);
    if (!absl::IsUnavailable(ended)) continue;
    handle_.OnDisconnect();
    disconnected_since_ = std::min(disconnected_since_, absl::Now());
  }
}

absl::StatusOr<bool> Pipeline::WaitForWork(int attempts, const absl::Status& ended) {
  const absl::MutexLock lock(&mu_);
  if (attempts > 0) {
    mu_.AwaitWithTimeout(absl::Condition(&abandoned_), Backoff(handle_.policy(), attempts));
  }
  auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return abandoned_ || !open_ || ExpectsReply();
  };
  mu_.Await(absl::Condition(&ready));
  if (abandoned_) return AbandonedError();
  if (pending_.empty() && !(open_ && replaying_)) return false;
  if (!ended.ok() && absl::Now() >= ReplyDeadline()) return ended;
  return true;
}

absl::Status Pipeline::RunConnection(absl::Status* ended) {
  int64_t first = 0;
  CallPolicy once = handle_.policy();
  bool known = ended->ok();
  {
    const absl::MutexLock lock(&mu_);
    known = known && !replaying_;
    first = handle_.last_applied() + 1;
    once.timeout = ReplyDeadline() - absl::Now();
  }
  if (!known) {
    once.max_attempts = 1;
    absl::StatusOr<v1::Trainer> info = handle_.GetTrainer(once);
    if (absl::IsUnavailable(info.status())) {
      *ended = info.status();
      return absl::OkStatus();
    }
    if (!info.ok()) return info.status();
    absl::StatusOr<int64_t> next = ResumePoint(*info, *ended);
    if (!next.ok()) return next.status();
    first = *next;
  }
  return RunCall(first, ended);
}

absl::StatusOr<int64_t> Pipeline::ResumePoint(const v1::Trainer& info, const absl::Status& ended) {
  Position position;
  {
    const absl::MutexLock lock(&mu_);
    if (absl::Status status = handle_.CheckLastOperator(info); !status.ok()) return status;
    position = {handle_.last_applied(), last_sent_, log_->base(), log_->retains()};
    if (absl::IsFailedPrecondition(ended) && info.applied_sequence() == position.acknowledged) {
      return ExplainReplayFailure(ended, position.acknowledged + 1,
                                  pending_.empty() ? 0 : LastDelivered() + 1);
    }
  }
  absl::StatusOr<int64_t> first =
      ResumeAt(info, position, [this] { return handle_.MayHaveRestarted(); });
  if (!first.ok()) return first;
  const absl::MutexLock lock(&mu_);
  if (*first <= position.acknowledged) {
    last_sent_ = *first - 1;
    handle_.set_last_applied(last_sent_);
  }
  if (handle_.last_applied() >= LastDelivered()) replaying_ = false;
  return first;
}

absl::Status Pipeline::RunCall(int64_t first, absl::Status* ended) {
  StreamCall::Delegate& delegate = *this;
  const auto call = std::make_shared<StreamCall>(handle_.training(), delegate);
  {
    const absl::MutexLock lock(&mu_);
    if (abandoned_) return AbandonedError();
    next_send_ = next_reply_ = first;
    barrier_ = 0;
    ended_ = false;
  }
  call->Start();
  bool abandoned = false;
  {
    const absl::MutexLock lock(&mu_);
    call_ = call;
    abandoned = abandoned_;
  }
  // Sends operations that were queued before `call_` was set.
  call->Pump();
  if (abandoned) call->Cancel();
  return ClassifyEnd(WaitForEnd(*call), ended);
}

absl::Status Pipeline::WaitForEnd(StreamCall& call) {
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      const absl::Time due = ReplyDeadline();
      auto ended_or_earlier = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return ended_ || ReplyDeadline() < due;
      };
      mu_.AwaitWithDeadline(absl::Condition(&ended_or_earlier), due);
      if (ended_) {
        call_ = nullptr;
        return end_status_;
      }
      if (absl::Now() < ReplyDeadline()) continue;
    }
    call.Cancel();
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&ended_));
  }
}

absl::Status Pipeline::ClassifyEnd(const absl::Status& status, absl::Status* ended) {
  const absl::MutexLock lock(&mu_);
  if (abandoned_) return AbandonedError();
  if (absl::IsCancelled(status) && absl::Now() >= ReplyDeadline()) {
    return absl::DeadlineExceededError(
        absl::StrCat("no reply in ", absl::FormatDuration(timeout_)));
  }
  if (absl::IsAborted(status)) return WithOtherClientHint(status);
  if (absl::IsCancelled(status) && replaying_) {
    *ended = absl::UnavailableError("server: restarted");
    return absl::OkStatus();
  }
  *ended = status;
  if (status.ok() && !pending_.empty()) {
    *ended = absl::UnavailableError("server: ended the stream");
  }
  const bool recoverable =
      status.ok() || absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
  return recoverable ? absl::OkStatus() : status;
}

void Pipeline::Fail(const absl::Status& failure) {
  std::deque<Pending> pending;
  {
    const absl::MutexLock lock(&mu_);
    open_ = false;
    failure_ = failure;
    pending = std::exchange(pending_, {});
    if (!pending.empty()) {
      handle_.RecordUnanswered(log_->TruncateAfter(pending.front().sequence - 1), failure);
    }
  }
  const absl::Status cancelled = absl::CancelledError(
      absl::StrCat("earlier operation ", pending.empty() ? 0 : pending.front().sequence,
                   " failed: ", failure.message()));
  bool first = true;
  for (Pending& operation : pending) {
    operation.callback(first ? failure : cancelled);
    first = false;
  }
}

absl::Time Pipeline::ReplyDeadline() const {
  if (!ExpectsReply()) return absl::InfiniteFuture();
  return std::min(last_progress_ + timeout_, disconnected_since_ + handle_.restart_timeout());
}

}  // namespace braid::client
