#include "client/cpp/handle.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/messages.h"
#include "client/cpp/pipeline.h"
#include "client/cpp/random_id.h"

namespace braid::client {
namespace {

// Calls that ask for the server's uptime before a start is assumed.
constexpr int kMaxUptimeCalls = 5;

using Stub = v1::TrainingService::StubInterface;

// Reports whether the server writes checkpoints by itself. Without them no operation becomes
// durable, so retaining operations would be useless.
bool HasCheckpoints(const v1::Trainer& info) {
  const v1::CheckpointPolicy& policy = info.options().checkpoints();
  return policy.every_operations() > 0 || policy.every_seconds() > 0;
}

// Calls the unary method for the kind of `operation`.
absl::Status CallMethod(Stub& stub, const v1::StreamRequest& operation, const CallPolicy& policy,
                        v1::StreamResponse* reply, int* attempts) {
  auto call = [&](auto method, const auto& request, auto* into) {
    return CallInto(stub, method, request, policy, into, attempts);
  };
  switch (operation.operation_case()) {
    case v1::StreamRequest::kStep:
      return call(&Stub::Step, operation.step(), reply->mutable_step());
    case v1::StreamRequest::kForwardBackward:
      return call(&Stub::ForwardBackward, operation.forward_backward(),
                  reply->mutable_forward_backward());
    case v1::StreamRequest::kOptimStep:
      return call(&Stub::OptimStep, operation.optim_step(), reply->mutable_optim_step());
    case v1::StreamRequest::kForward:
      return call(&Stub::Forward, operation.forward(), reply->mutable_forward());
    case v1::StreamRequest::kBackward:
      return call(&Stub::Backward, operation.backward(), reply->mutable_backward());
    case v1::StreamRequest::kPublish:
      return call(&Stub::Publish, operation.publish(), reply->mutable_publish());
    case v1::StreamRequest::OPERATION_NOT_SET:
      break;
  }
  return absl::InternalError("operation: no kind is set");
}

}  // namespace

Handle::Handle(Stubs stubs, const v1::Trainer& info, const CallPolicy& policy,
               absl::Duration restart_timeout)
    : stubs_(std::move(stubs)),
      name_(info.name()),
      trainer_id_(info.id()),
      client_id_(RandomId()),
      policy_(policy),
      restart_timeout_(restart_timeout),
      log_(info.applied_sequence(), HasCheckpoints(info)),
      last_applied_(info.applied_sequence()),
      start_(info.applied_sequence()),
      start_operator_(info.last_operator()),
      last_contact_(std::chrono::steady_clock::now()) {}

absl::Status Handle::CheckNoStream() const {
  if (pipeline_ == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("trainer '", name_, "': a stream is open; use the stream or finish it"));
}

absl::StatusOr<v1::StreamResponse> Handle::Execute(v1::StreamRequest operation) {
  if (absl::Status status = CheckNoStream(); !status.ok()) return status;
  const absl::Time deadline = absl::Now() + policy_.timeout;
  const int64_t sequence = log_.last() + 1;
  SetHeader(name_, MakeSender(sequence), sequence, &operation);
  if (log_.IsFull(operation.ByteSizeLong(), operation.forward().keep_graph())) {
    absl::StatusOr<std::optional<int64_t>> durable = MakeDurable(deadline - absl::Now());
    if (!durable.ok()) return durable.status();
    TrimLog(*durable);
  }
  const auto kept = std::make_shared<const v1::StreamRequest>(std::move(operation));
  absl::StatusOr<v1::StreamResponse> reply = SendUpTo(SequenceOf(*kept), kept.get(), deadline);
  if (!reply.ok()) {
    RecordUnanswered({kept}, reply.status());
    return reply;
  }
  ClearUnanswered();
  log_.Add(kept);
  log_.Trim(last_applied_, StatusOf(*reply).durable_sequence());
  return reply;
}

// The IDs let the server reject an operation after another client has operated the trainer, or
// after the name was given to another trainer.
v1::Sender Handle::MakeSender(int64_t sequence) const {
  v1::Sender sender;
  sender.set_trainer_id(trainer_id_);
  sender.set_client_id(client_id_);
  sender.set_last_operator(ExpectedOperator(sequence - 1));
  return sender;
}

const std::string& Handle::ExpectedOperator(int64_t sequence) const {
  return sequence > start_ ? client_id_ : start_operator_;
}

absl::Status Handle::CheckLastOperator(const v1::Trainer& info) const {
  const int64_t applied = info.applied_sequence();
  if (applied < start_ || applied > log_.last()) return absl::OkStatus();
  const std::string& expected = ExpectedOperator(applied);
  const bool known = !expected.empty() && !info.last_operator().empty();
  return known && expected != info.last_operator() ? OtherOperatorError(info) : absl::OkStatus();
}

void Handle::StartFrom(const v1::Trainer& info) {
  log_.Reset(info.applied_sequence());
  ClearUnanswered();
  last_applied_ = info.applied_sequence();
  start_ = info.applied_sequence();
  start_operator_ = info.last_operator();
}

absl::StatusOr<v1::Trainer> Handle::GetTrainer(const CallPolicy& policy, bool settled) const {
  v1::GetTrainerRequest request;
  request.set_name(name_);
  request.set_settled(settled);
  absl::StatusOr<v1::GetTrainerResponse> reply =
      Call(*stubs_.training, &Stub::GetTrainer, request, policy);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_trainer());
}

absl::StatusOr<v1::Checkpoint> Handle::WriteCheckpoint(bool retains, absl::Duration timeout) const {
  v1::SaveCheckpointRequest request;
  request.set_trainer(name_);
  absl::StatusOr<v1::SaveCheckpointResponse> reply =
      Call(*stubs_.training, &Stub::SaveCheckpoint, request, RestartPolicy(retains, timeout));
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_checkpoint());
}

absl::StatusOr<std::optional<int64_t>> Handle::MakeDurable(absl::Duration timeout) const {
  absl::StatusOr<v1::Checkpoint> checkpoint = WriteCheckpoint(log_.retains(), timeout);
  if (absl::IsFailedPrecondition(checkpoint.status())) return std::nullopt;
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->sequence();
}

void Handle::TrimLog(std::optional<int64_t> durable) {
  if (!durable) log_.StopRetaining();
  log_.Trim(last_applied_, durable.value_or(0));
}

void Handle::OnContact(Moment moment) {
  last_contact_ = moment;
  disconnected_ = false;
}

bool Handle::MayHaveRestarted() const { return disconnected_ || StartedAfter(last_contact_); }

bool Handle::StartedAfter(Moment moment) const {
  // The uptime is from some time during the call. Asks again if the answer depends on when.
  for (int i = 0; i < kMaxUptimeCalls; ++i) {
    const Moment asked = std::chrono::steady_clock::now();
    const absl::StatusOr<v1::ListDevicesResponse> reply =
        Call(*stubs_.devices, &v1::DeviceService::StubInterface::ListDevices,
             v1::ListDevicesRequest(), policy_);
    if (!reply.ok()) return false;
    const std::chrono::duration<double> uptime(reply->uptime_seconds());
    if (asked - uptime > moment) return true;
    if (std::chrono::steady_clock::now() - uptime <= moment) return false;
  }
  return true;
}

absl::StatusOr<v1::StreamResponse> Handle::SendUpTo(int64_t last, const v1::StreamRequest* current,
                                                    absl::Time deadline) {
  const int64_t current_number = current == nullptr ? 0 : SequenceOf(*current);
  absl::StatusOr<v1::StreamResponse> reply = v1::StreamResponse();
  while (last_applied_ < last) {
    const int64_t number = last_applied_ + 1;
    const bool is_current = current != nullptr && number == current_number;
    reply = Send(is_current ? *current : *log_.Get(number), deadline);
    if (reply.ok()) {
      last_applied_ = number;
      continue;
    }
    if (!absl::IsFailedPrecondition(reply.status())) return reply;
    CallPolicy policy = policy_;
    policy.timeout = deadline - absl::Now();
    absl::StatusOr<v1::Trainer> info = GetTrainer(policy);
    if (!info.ok()) return info.status();
    if (absl::Status status = CheckLastOperator(*info); !status.ok()) return status;
    if (info->applied_sequence() == last_applied_) {
      return ExplainReplayFailure(reply.status(), number, current_number);
    }
    absl::StatusOr<int64_t> next =
        ResumeAt(*info, {last_applied_, number, log_.base(), log_.retains()},
                 [&] { return MayHaveRestarted(); });
    if (!next.ok()) return next.status();
    last_applied_ = *next - 1;
  }
  return reply;
}

absl::StatusOr<v1::StreamResponse> Handle::Send(const v1::StreamRequest& operation,
                                                absl::Time deadline) {
  v1::StreamResponse reply;
  int attempts = 0;
  absl::Status status =
      CallMethod(*stubs_.training, operation, RestartPolicy(log_.retains(), deadline - absl::Now()),
                 &reply, &attempts);
  if (status.ok()) {
    OnContact(std::chrono::steady_clock::now());
    return reply;
  }
  if (attempts > 1 || absl::IsUnavailable(status)) OnDisconnect();
  return absl::IsAborted(status) ? WithOtherClientHint(status) : status;
}

CallPolicy Handle::RestartPolicy(bool retains, absl::Duration timeout) const {
  CallPolicy policy = policy_;
  policy.timeout = timeout;
  if (retains) {
    policy.max_attempts = std::numeric_limits<int>::max();
    policy.retry_window = restart_timeout_;
  }
  return policy;
}

absl::Status Handle::Read(absl::FunctionRef<absl::Status(const CallPolicy&)> read) {
  const absl::Time deadline = absl::Now() + policy_.timeout;
  while (true) {
    absl::StatusOr<bool> restarted = TryRead(read, deadline);
    if (!restarted.ok()) return restarted.status();
    if (!*restarted) return absl::OkStatus();
  }
}

absl::Status Handle::ReadOnce(absl::FunctionRef<absl::Status(const CallPolicy&)> read) {
  absl::StatusOr<bool> restarted = TryRead(read, absl::Now() + policy_.timeout);
  if (!restarted.ok()) return restarted.status();
  return *restarted ? absl::UnavailableError("server: restarted during the call")
                    : absl::OkStatus();
}

absl::StatusOr<bool> Handle::TryRead(absl::FunctionRef<absl::Status(const CallPolicy&)> read,
                                     absl::Time deadline) {
  absl::StatusOr<Moment> checked = Resync(deadline);
  if (!checked.ok()) return checked.status();
  CallPolicy policy = policy_;
  policy.timeout = deadline - absl::Now();
  absl::Status status = read(policy);
  if (!status.ok()) return status;
  return StartedAfter(*checked);
}

absl::StatusOr<Handle::Moment> Handle::Resync(absl::Time deadline) {
  if (pipeline_ != nullptr) return pipeline_->Resync(deadline);
  while (true) {
    absl::StatusOr<TrainerSnapshot> snapshot = FetchTrainer(log_.retains(), deadline);
    if (!snapshot.ok()) return snapshot.status();
    if (snapshot->disconnected) OnDisconnect();
    if (absl::Status status = CheckLastOperator(snapshot->info); !status.ok()) return status;
    const int64_t applied = snapshot->info.applied_sequence();
    if (applied >= last_applied_ && last_applied_ == log_.last()) {
      OnContact(snapshot->requested_at);
      return snapshot->requested_at;
    }
    if (applied < last_applied_) {
      absl::StatusOr<int64_t> next =
          ResumeAt(snapshot->info, {last_applied_, last_applied_, log_.base(), log_.retains()},
                   [this] { return MayHaveRestarted(); });
      if (!next.ok()) return next.status();
      last_applied_ = *next - 1;
    }
    absl::StatusOr<v1::StreamResponse> reply = SendUpTo(log_.last(), nullptr, deadline);
    if (!reply.ok()) return reply.status();
  }
}

absl::StatusOr<bool> Handle::Replay(absl::Time deadline) {
  absl::Status status = Resync(deadline).status();
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return status;
  return status.ok();
}

absl::StatusOr<v1::Trainer> Handle::Refresh() {
  if (absl::Status status = CheckNoStream(); !status.ok()) return status;
  CallPolicy policy = policy_;
  const absl::Time deadline = absl::Now() + policy.timeout;
  while (true) {
    absl::StatusOr<bool> replayed = Replay(deadline);
    if (!replayed.ok()) return replayed.status();
    policy.timeout = deadline - absl::Now();
    absl::StatusOr<v1::Trainer> info = GetTrainer(policy, /*settled=*/true);
    if (!info.ok()) return info;
    const int64_t applied = info->applied_sequence();
    const bool undone = *replayed && applied < last_applied_;  // by yet another restart
    if (undone || AdoptUnanswered(*info)) continue;
    const bool unchanged = last_applied_ == log_.last() && last_applied_ == applied;
    if (!unchanged || !CheckLastOperator(*info).ok()) StartFrom(*info);
    ClearUnanswered();
    return info;
  }
}

void Handle::RecordUnanswered(std::vector<OperationLog::Operation> operations,
                              const absl::Status& status) {
  const bool unknown =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  if (log_.retains() && unknown && !operations.empty()) unanswered_ = std::move(operations);
}

bool Handle::AdoptUnanswered(const v1::Trainer& info) {
  const int64_t number = info.applied_sequence() - log_.last();
  const bool mine = info.id() == trainer_id_ && info.last_operator() == client_id_;
  if (!mine || number <= 0 || number > static_cast<int64_t>(unanswered_.size())) return false;
  for (int64_t i = 0; i < number; ++i) log_.Add(unanswered_[static_cast<size_t>(i)]);
  ClearUnanswered();
  last_applied_ = log_.last() - 1;
  return true;
}

Handle::Progress Handle::progress() const {
  if (pipeline_ != nullptr) return pipeline_->progress();
  return {log_.last(), log_.retains()};
}

absl::StatusOr<Handle::TrainerSnapshot> Handle::FetchTrainer(bool retains,
                                                             absl::Time deadline) const {
  TrainerSnapshot snapshot;
  while (true) {
    snapshot.requested_at = std::chrono::steady_clock::now();
    CallPolicy once = policy_;
    once.timeout = deadline - absl::Now();
    once.max_attempts = 1;
    absl::StatusOr<v1::Trainer> info = GetTrainer(once);
    if (info.ok()) {
      if (info->id() != trainer_id_) {
        return absl::AbortedError(absl::StrCat(
            "trainer '", name_, "': was deleted, and a new trainer has its name; attach again"));
      }
      snapshot.info = *std::move(info);
      return snapshot;
    }
    if (!absl::IsUnavailable(info.status())) return info.status();
    snapshot.disconnected = true;
    // Waits for the server.
    info = GetTrainer(RestartPolicy(retains, deadline - absl::Now()));
    if (!info.ok()) return info.status();
  }
}

absl::StatusOr<v1::Checkpoint> Handle::SaveCheckpoint() {
  const absl::Time deadline = absl::Now() + policy_.timeout;
  while (true) {
    const Progress before = progress();
    absl::StatusOr<v1::Checkpoint> checkpoint;
    const auto write = [&](const CallPolicy& policy) {
      checkpoint = WriteCheckpoint(before.retains, policy.timeout);
      return checkpoint.status();
    };
    absl::StatusOr<bool> restarted = TryRead(write, deadline);
    if (!restarted.ok()) return restarted.status();
    if (!*restarted && checkpoint->sequence() >= before.sequence) return checkpoint;
  }
}

absl::Status ExplainReplayFailure(const absl::Status& status, int64_t failed, int64_t current) {
  if (failed == current) return status;
  return WithMessage(status, absl::StrCat("operation ", failed,
                                          " was applied, then lost in a server restart; its replay "
                                          "failed: ",
                                          status.message()));
}

}  // namespace braid::client
