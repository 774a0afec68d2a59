#include "client/cpp/handle.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/messages.h"
#include "client/cpp/random_id.h"

namespace braid::client {
namespace {

using Stub = v1::TrainingService::StubInterface;

// Only with a policy: else nothing would ever make an operation durable.
bool HasCheckpoints(const v1::Trainer& info) {
  const v1::CheckpointPolicy& policy = info.options().checkpoints();
  return policy.every_operations() > 0 || policy.every_seconds() > 0;
}

// Calls the operation's own method.
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
  return absl::InternalError("an operation without a kind");
}

}  // namespace

Handle::Handle(Stubs stubs, const v1::Trainer& info, const CallPolicy& policy,
               absl::Duration patience)
    : stubs_(std::move(stubs)),
      name_(info.name()),
      trainer_id_(info.id()),
      client_id_(RandomId()),
      policy_(policy),
      patience_(patience),
      log_(info.applied_sequence(), HasCheckpoints(info)),
      standing_(info.applied_sequence()),
      begun_(info.applied_sequence()),
      follows_(info.last_operator()),
      heard_at_(std::chrono::steady_clock::now()) {}

absl::Status Handle::CheckFree() const {
  if (pipeline_ == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("trainer \"", name_, "\": a stream is open; operate through that"));
}

absl::StatusOr<v1::StreamResponse> Handle::Operate(v1::StreamRequest operation) {
  if (absl::Status status = CheckFree(); !status.ok()) return status;
  const absl::Time deadline = absl::Now() + policy_.timeout;
  const int64_t sequence = log_.last() + 1;
  Address(name_, SenderOf(sequence), sequence, &operation);
  if (log_.IsFull(operation.ByteSizeLong(), operation.forward().keep_graph())) {
    absl::StatusOr<std::optional<int64_t>> durable = MakeDurable(deadline - absl::Now());
    if (!durable.ok()) return durable.status();
    Settle(*durable);
  }
  const auto kept = std::make_shared<const v1::StreamRequest>(std::move(operation));
  absl::StatusOr<v1::StreamResponse> reply = SendUpTo(SequenceOf(*kept), kept.get(), deadline);
  if (!reply.ok()) {
    LeaveOpen({kept}, reply.status());
    return reply;
  }
  ForgetUnanswered();
  log_.Add(kept);
  log_.Settle(standing_, StatusOf(*reply).durable_sequence());
  return reply;
}

// Another client's operations are not taken for this one's, nor another trainer of the name for
// this one.
v1::Sender Handle::SenderOf(int64_t sequence) const {
  v1::Sender sender;
  sender.set_trainer_id(trainer_id_);
  sender.set_client_id(client_id_);
  sender.set_last_operator(OperatorOf(sequence - 1));
  return sender;
}

const std::string& Handle::OperatorOf(int64_t sequence) const {
  return sequence > begun_ ? client_id_ : follows_;
}

absl::Status Handle::CheckOperator(const v1::Trainer& info) const {
  const int64_t applied = info.applied_sequence();
  if (applied < begun_ || applied > log_.last()) return absl::OkStatus();
  const std::string& expected = OperatorOf(applied);
  const bool told = !expected.empty() && !info.last_operator().empty();
  return told && expected != info.last_operator() ? OperatedByAnother(info) : absl::OkStatus();
}

void Handle::BeginAt(const v1::Trainer& info) {
  log_.Reset(info.applied_sequence());
  ForgetUnanswered();
  standing_ = info.applied_sequence();
  begun_ = info.applied_sequence();
  follows_ = info.last_operator();
}

absl::StatusOr<v1::Trainer> Handle::Info(const CallPolicy& policy, bool settled) const {
  v1::GetTrainerRequest request;
  request.set_name(name_);
  request.set_settled(settled);
  absl::StatusOr<v1::GetTrainerResponse> reply =
      Call(*stubs_.training, &Stub::GetTrainer, request, policy);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_trainer());
}

absl::StatusOr<v1::Checkpoint> Handle::WriteCheckpoint(bool keeps, absl::Duration timeout) const {
  v1::SaveCheckpointRequest request;
  request.set_trainer(name_);
  absl::StatusOr<v1::SaveCheckpointResponse> reply =
      Call(*stubs_.training, &Stub::SaveCheckpoint, request, Patient(keeps, timeout));
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_checkpoint());
}

absl::StatusOr<std::optional<int64_t>> Handle::MakeDurable(absl::Duration timeout) const {
  absl::StatusOr<v1::Checkpoint> checkpoint = WriteCheckpoint(log_.keeps(), timeout);
  if (absl::IsFailedPrecondition(checkpoint.status())) return std::nullopt;
  if (!checkpoint.ok()) return checkpoint.status();
  return checkpoint->sequence();
}

void Handle::Settle(std::optional<int64_t> durable) {
  if (!durable) log_.StopKeeping();
  log_.Settle(standing_, durable.value_or(0));
}

void Handle::Heard(Moment moment) {
  heard_at_ = moment;
  broke_ = false;
}

bool Handle::Restarted() const { return broke_ || StartedAfter(heard_at_); }

bool Handle::StartedAfter(Moment moment) const {
  absl::StatusOr<v1::ListDevicesResponse> reply =
      Call(*stubs_.devices, &v1::DeviceService::StubInterface::ListDevices,
           v1::ListDevicesRequest(), policy_);
  if (!reply.ok()) return false;
  const std::chrono::duration<double> uptime(reply->uptime_seconds());
  return std::chrono::steady_clock::now() - uptime > moment;
}

absl::StatusOr<v1::StreamResponse> Handle::SendUpTo(int64_t last, const v1::StreamRequest* asked,
                                                    absl::Time deadline) {
  const int64_t asked_number = asked == nullptr ? 0 : SequenceOf(*asked);
  absl::StatusOr<v1::StreamResponse> reply = v1::StreamResponse();
  while (standing_ < last) {
    const int64_t number = standing_ + 1;
    const bool is_asked = asked != nullptr && number == asked_number;
    reply = Send(is_asked ? *asked : *log_.Get(number), deadline);
    if (reply.ok()) {
      standing_ = number;
      continue;
    }
    if (!absl::IsFailedPrecondition(reply.status())) return reply;
    CallPolicy policy = policy_;
    policy.timeout = deadline - absl::Now();
    absl::StatusOr<v1::Trainer> info = Info(policy);
    if (!info.ok()) return info.status();
    if (absl::Status status = CheckOperator(*info); !status.ok()) return status;
    if (info->applied_sequence() == standing_) {
      return OwnFailure(reply.status(), number, asked_number);
    }
    absl::StatusOr<int64_t> next = ResumeAt(*info, {standing_, number, log_.base(), log_.keeps()},
                                            [&] { return Restarted(); });
    if (!next.ok()) return next.status();
    standing_ = *next - 1;
  }
  return reply;
}

absl::StatusOr<v1::StreamResponse> Handle::Send(const v1::StreamRequest& operation,
                                                absl::Time deadline) {
  v1::StreamResponse reply;
  int attempts = 0;
  absl::Status status =
      CallMethod(*stubs_.training, operation, Patient(log_.keeps(), deadline - absl::Now()), &reply,
                 &attempts);
  if (status.ok()) {
    Heard(std::chrono::steady_clock::now());
    return reply;
  }
  if (attempts > 1 || absl::IsUnavailable(status)) Broke();
  return absl::IsAborted(status) ? ByAnotherClient(status) : status;
}

CallPolicy Handle::Patient(bool keeps, absl::Duration timeout) const {
  CallPolicy policy = policy_;
  policy.timeout = timeout;
  if (keeps) {
    policy.max_attempts = std::numeric_limits<int>::max();
    policy.patience = patience_;
  }
  return policy;
}

absl::Status OwnFailure(const absl::Status& status, int64_t failed, int64_t asked) {
  if (failed == asked) return status;
  return WithMessage(status, absl::StrCat("operation ", failed,
                                          " had been applied, was lost with the server's restart, "
                                          "and now fails: ",
                                          status.message()));
}

}  // namespace braid::client
