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

absl::Status Left() { return absl::CancelledError("the stream was left"); }

}  // namespace

Pipeline::Pipeline(Handle& handle, size_t depth, absl::Duration timeout)
    : handle_(handle),
      depth_(depth),
      timeout_(timeout),
      log_(&handle.log()),
      sent_(handle.standing()),
      thread_([this] {
        if (absl::Status failure = Serve(); !failure.ok()) Fail(failure);
      }) {}

Pipeline::~Pipeline() { GiveUp(); }

void Pipeline::Submit(v1::StreamRequest operation, Done done) {
  absl::Status status;
  {
    const absl::MutexLock submitting(&submit_mu_);
    status = Enqueue(operation, done);
  }
  if (!status.ok()) {
    done(std::move(status));
    return;
  }
  std::shared_ptr<StreamCall> call;
  {
    const absl::MutexLock lock(&mu_);
    call = call_;
  }
  if (call != nullptr) call->Pump();
}

absl::StatusOr<Handle::Moment> Pipeline::BringUp(absl::Time deadline) {
  while (true) {
    const Handle::Seen before = seen();
    absl::StatusOr<Handle::Look> look = handle_.LookUp(before.keeps, deadline);
    if (!look.ok()) return look.status();
    if (absl::Status status = CheckOperator(look->info); !status.ok()) return status;
    if (look->info.applied_sequence() >= before.sequence) return look->asked;
    absl::StatusOr<std::shared_ptr<StreamCall>> call = FallBack(before.sequence);
    if (!call.ok()) return call.status();
    if (*call != nullptr) (*call)->Cancel();
    const absl::MutexLock lock(&mu_);
    auto made_up = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return !open_ || (!fell_back_ && handle_.standing() >= before.sequence);
    };
    if (!mu_.AwaitWithDeadline(absl::Condition(&made_up), deadline)) {
      return absl::DeadlineExceededError("what the server has lost is being sent again");
    }
  }
}

// Has what was lost sent again, though nothing may be pending, unless that is being done. Returns
// the connection to be ended for it, if there is one.
absl::StatusOr<std::shared_ptr<StreamCall>> Pipeline::FallBack(int64_t seen) {
  const absl::MutexLock lock(&mu_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (handle_.standing() < seen) return nullptr;
  fell_back_ = true;
  progress_ = absl::Now();
  broken_since_ = absl::InfiniteFuture();
  return call_;
}

absl::Status Pipeline::CheckOperator(const v1::Trainer& info) {
  const absl::MutexLock lock(&mu_);
  return handle_.CheckOperator(info);
}

Handle::Seen Pipeline::seen() {
  const absl::MutexLock lock(&mu_);
  return {LastSeen(), log_->keeps()};
}

int64_t Pipeline::LastSeen() const {
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

void Pipeline::GiveUp() {
  std::shared_ptr<StreamCall> call;
  {
    const absl::MutexLock lock(&mu_);
    open_ = false;
    left_ = true;
    call = call_;
  }
  if (call != nullptr) call->Cancel();
  if (thread_.joinable()) thread_.join();
}

// Takes `operation` and `done` if it succeeds.
absl::Status Pipeline::Enqueue(v1::StreamRequest& operation, Done& done) {
  const size_t bytes = operation.ByteSizeLong();
  if (absl::Status status = WaitForRoom(bytes); !status.ok()) return status;
  const absl::MutexLock lock(&mu_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  const int64_t sequence = log_->last() + 1;
  Address(handle_.name(), handle_.SenderOf(sequence), sequence, &operation);
  if (absl::Status status = CheckSendable(operation.ByteSizeLong()); !status.ok()) return status;
  if (pending_.empty()) {
    progress_ = absl::Now();
    broken_since_ = absl::InfiniteFuture();
  }
  log_->Add(std::make_shared<const v1::StreamRequest>(std::move(operation)));
  pending_.push_back({sequence, std::move(done)});
  return absl::OkStatus();
}

absl::Status Pipeline::WaitForRoom(size_t bytes) {
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
  // Replies will bring nothing: there are none to come. So the client asks for durability.
  absl::StatusOr<std::optional<int64_t>> durable = handle_.MakeDurable(timeout_);
  if (!durable.ok()) return durable.status();
  const absl::MutexLock lock(&mu_);
  handle_.Settle(*durable);
  return absl::OkStatus();
}

absl::Status Pipeline::CheckOpen() const {
  if (!failure_.ok()) return failure_;
  if (open_) return absl::OkStatus();
  return absl::FailedPreconditionError("the stream has been ended");
}

StreamCall::Next Pipeline::NextToSend() {
  const absl::MutexLock lock(&mu_);
  if (!open_ && pending_.empty()) return {nullptr, true};
  if (to_answer_ <= barrier_ || to_send_ > log_->last()) return {};
  OperationLog::Operation operation = log_->Get(to_send_);
  // So its reply, which nothing else can tell, stays the server's last one.
  if (operation->has_publish()) barrier_ = to_send_;
  sent_ = std::max(sent_, to_send_);
  ++to_send_;
  return {std::move(operation)};
}

absl::Status Pipeline::TakeReply(v1::StreamResponse reply) {
  std::vector<std::pair<Done, absl::StatusOr<Reply>>> results;
  {
    const absl::MutexLock lock(&mu_);
    if (to_answer_ >= to_send_) {
      return absl::InternalError("the server replied to more than it was sent");
    }
    if (!Answers(reply, *log_->Get(to_answer_))) {
      return absl::InternalError(
          absl::StrCat("the server's reply to operation ", to_answer_, " is of another kind"));
    }
    const int64_t sequence = to_answer_++;
    const v1::OperationStatus status = StatusOf(reply);
    handle_.set_standing(sequence);
    handle_.ForgetUnanswered();
    handle_.Heard(std::chrono::steady_clock::now());
    progress_ = absl::Now();
    broken_since_ = absl::InfiniteFuture();
    while (!pending_.empty() && pending_.front().sequence < sequence) {
      const OperationLog::Operation& lost = log_->Get(pending_.front().sequence);
      results.emplace_back(std::move(pending_.front().done), Reply{LostReply(*lost, status), true});
      pending_.pop_front();
    }
    if (!pending_.empty() && pending_.front().sequence == sequence) {
      results.emplace_back(std::move(pending_.front().done), Reply{std::move(reply)});
      pending_.pop_front();
    }
    log_->Settle(sequence, status.durable_sequence());
    if (sequence >= LastSeen()) fell_back_ = false;
  }
  for (auto& [done, result] : results) done(std::move(result));
  return absl::OkStatus();
}

void Pipeline::Over(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  over_ = true;
  over_status_ = status;
}

absl::Status Pipeline::Serve() {
  absl::Status ended;
  for (int attempts = 0;;) {
    absl::StatusOr<bool> work = WaitForWork(attempts, ended);
    if (!work.ok()) return work.status();
    if (!*work) return absl::OkStatus();
    const absl::Time begin = absl::Now();
    if (absl::Status end = Attend(&ended); !end.ok()) return end;
    const absl::MutexLock lock(&mu_);
    attempts = ended.ok() ? 0 : attempts + 1;
    if (progress_ > begin) attempts = std::min(attempts, 1);
    if (!absl::IsUnavailable(ended)) continue;
    handle_.Broke();
    broken_since_ = std::min(broken_since_, absl::Now());
  }
}

// False if there will be none. Before another attempt it waits a little.
absl::StatusOr<bool> Pipeline::WaitForWork(int attempts, const absl::Status& ended) {
  const absl::MutexLock lock(&mu_);
  if (attempts > 0) {
    mu_.AwaitWithTimeout(absl::Condition(&left_), Backoff(handle_.policy(), attempts));
  }
  auto decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return left_ || !open_ || Awaited(); };
  mu_.Await(absl::Condition(&decided));
  if (left_) return Left();
  if (pending_.empty() && !(open_ && fell_back_)) return false;
  if (!ended.ok() && absl::Now() >= Due()) return ended;
  return true;
}

// One connection from its start to its end.
absl::Status Pipeline::Attend(absl::Status* ended) {
  int64_t first = 0;
  CallPolicy once = handle_.policy();
  bool knows = ended->ok();
  {
    const absl::MutexLock lock(&mu_);
    knows = knows && !fell_back_;
    first = handle_.standing() + 1;
    once.timeout = Due() - absl::Now();
  }
  if (!knows) {
    once.max_attempts = 1;
    absl::StatusOr<v1::Trainer> info = handle_.Info(once);
    if (absl::IsUnavailable(info.status())) {
      *ended = info.status();
      return absl::OkStatus();
    }
    if (!info.ok()) return info.status();
    absl::StatusOr<int64_t> next = WhereToGoOn(*info, *ended);
    if (!next.ok()) return next.status();
    first = *next;
  }
  return Converse(first, ended);
}

absl::StatusOr<int64_t> Pipeline::WhereToGoOn(const v1::Trainer& info, const absl::Status& ended) {
  Position position;
  {
    const absl::MutexLock lock(&mu_);
    if (absl::Status status = handle_.CheckOperator(info); !status.ok()) return status;
    position = {handle_.standing(), sent_, log_->base(), log_->keeps()};
    if (absl::IsFailedPrecondition(ended) && info.applied_sequence() == position.seen) {
      return OwnFailure(ended, position.seen + 1, pending_.empty() ? 0 : LastSeen() + 1);
    }
  }
  absl::StatusOr<int64_t> first = ResumeAt(info, position, [this] { return handle_.Restarted(); });
  if (!first.ok()) return first;
  const absl::MutexLock lock(&mu_);
  if (*first <= position.seen) {
    sent_ = *first - 1;
    handle_.set_standing(sent_);
  }
  if (handle_.standing() >= LastSeen()) fell_back_ = false;
  return first;
}

absl::Status Pipeline::Converse(int64_t first, absl::Status* ended) {
  StreamCall::Owner& owner = *this;
  const auto call = std::make_shared<StreamCall>(handle_.training(), owner);
  {
    const absl::MutexLock lock(&mu_);
    if (left_) return Left();
    to_send_ = to_answer_ = first;
    barrier_ = 0;
    over_ = false;
  }
  call->Start();
  bool left = false;
  {
    const absl::MutexLock lock(&mu_);
    call_ = call;
    left = left_;
  }
  // What came between the two, and found no call.
  call->Pump();
  if (left) call->Cancel();
  return Judge(WaitUntilOver(*call), ended);
}

// Ends a connection on which no reply comes in time.
absl::Status Pipeline::WaitUntilOver(StreamCall& call) {
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      const absl::Time due = Due();
      auto over_or_earlier = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return over_ || Due() < due; };
      mu_.AwaitWithDeadline(absl::Condition(&over_or_earlier), due);
      if (over_) {
        call_ = nullptr;
        return over_status_;
      }
      if (absl::Now() < Due()) continue;
    }
    call.Cancel();
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&over_));
  }
}

// What of a connection's end can be gone on after becomes `ended`; the rest is returned.
absl::Status Pipeline::Judge(const absl::Status& status, absl::Status* ended) {
  const absl::MutexLock lock(&mu_);
  if (left_) return Left();
  if (absl::IsCancelled(status) && absl::Now() >= Due()) {
    return absl::DeadlineExceededError(
        absl::StrCat("no reply in ", absl::FormatDuration(timeout_)));
  }
  if (absl::IsAborted(status)) return ByAnotherClient(status);
  if (absl::IsCancelled(status) && fell_back_) {
    *ended = absl::UnavailableError("the server was started again");
    return absl::OkStatus();
  }
  *ended = status;
  if (status.ok() && !pending_.empty()) {
    *ended = absl::UnavailableError("the server ended the stream");
  }
  const bool goes_on =
      status.ok() || absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
  return goes_on ? absl::OkStatus() : status;
}

// The first pending operation failed, or nobody knows.
void Pipeline::Fail(const absl::Status& failure) {
  std::deque<Pending> pending;
  {
    const absl::MutexLock lock(&mu_);
    open_ = false;
    failure_ = failure;
    pending = std::exchange(pending_, {});
    if (!pending.empty()) {
      handle_.LeaveOpen(log_->DropAfter(pending.front().sequence - 1), failure);
    }
  }
  const absl::Status behind = absl::CancelledError(
      absl::StrCat("operation ", pending.empty() ? 0 : pending.front().sequence,
                   ", before this one, failed: ", failure.message()));
  bool first = true;
  for (Pending& operation : pending) {
    operation.done(first ? failure : behind);
    first = false;
  }
}

absl::Time Pipeline::Due() const {
  if (!Awaited()) return absl::InfiniteFuture();
  return std::min(progress_ + timeout_, broken_since_ + handle_.patience());
}

}  // namespace braid::client
