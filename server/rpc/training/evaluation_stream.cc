#include "server/rpc/training/evaluation_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "server/base/status.h"
#include "server/rpc/auth/string_limits.h"
#include "server/rpc/inference/tensor_codec.h"

namespace braid {
namespace {

constexpr int64_t kDefaultK = 5;

}  // namespace

EvaluationStream::EvaluationStream(TrainerRegistry* trainers, const RpcContext& rpc,
                                   const grpc::CallbackServerContext& context,
                                   braid::v1::EvaluateResponse* response)
    : trainers_(trainers),
      rpc_(rpc),
      response_(response),
      self_(this),
      record_(rpc.metrics, "Evaluate"),
      caller_(rpc.access, context, "Evaluate") {
  const absl::MutexLock lock(&mu_);
  absl::Status allowed = caller_.CheckStart();
  if (allowed.ok()) {
    allowed = rpc_.streams->Add(self_, caller_.client());
  }
  if (!allowed.ok()) {
    EndLocked(allowed);
    return;
  }
  Read();
}

void EvaluationStream::Read() {
  if (!leave_status_.ok()) {
    EndLocked(leave_status_);
  } else if (!ended_) {
    reading_ = true;
    StartRead(&request_);
  }
}

void EvaluationStream::Leave(const absl::Status& why) {
  const absl::MutexLock lock(&mu_);
  leave_status_ = why;
  if (reading_) {
    EndLocked(why);
  }
}

void EvaluationStream::OnReadDone(bool ok) {
  {
    const absl::MutexLock lock(&mu_);
    reading_ = false;
    if (ended_) {
      return;
    }
  }
  if (!ok) {
    End(WriteResult());
  } else if (const absl::Status status = Add(); !status.ok()) {
    End(status);
  }
}

absl::Status EvaluationStream::Add() {
  std::string client;
  {
    const absl::MutexLock lock(&mu_);
    // Only the first message names the trainer.
    BRAID_RETURN_IF_ERROR(
        caller_.CheckNames({.model = {}, .trainer = run_ ? run_->trainer : request_.trainer()}));
    client = caller_.client();
  }
  BRAID_RETURN_IF_ERROR(CheckStrings(request_));
  BRAID_ASSIGN_OR_RETURN(ticket_,
                         rpc_.admission->Admit(request_.ByteSizeLong(), std::move(client)));
  if (!run_) {
    const std::vector<std::string> metrics(request_.metrics().begin(), request_.metrics().end());
    BRAID_ASSIGN_OR_RETURN(
        run_, trainers_->StartEvaluation(request_.trainer(), metrics,
                                         request_.k() == 0 ? kDefaultK : request_.k()));
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> inputs, ReadTensors(request_.inputs(), "inputs"));
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> targets,
                         ReadTensors(request_.targets(), "targets"));
  trainers_->Evaluate(
      *run_, std::move(inputs), std::move(targets),
      [stream = self_](const absl::StatusOr<int64_t>& step) { stream->Added(step); });
  return absl::OkStatus();
}

void EvaluationStream::Added(const absl::StatusOr<int64_t>& step) {
  if (!step.ok()) {
    End(step.status());
    return;
  }
  step_ = *step;
  ticket_ = Ticket();  // waiting for the client does not count as in flight
  const absl::MutexLock lock(&mu_);
  Read();
}

absl::Status EvaluationStream::WriteResult() {
  if (!run_) {
    return InvalidField("inputs", "missing (expected at least one batch)");
  }
  const EvaluationResult result = TrainerRegistry::Result(*run_);
  if (result.loss) {
    response_->set_loss(*result.loss);
  }
  response_->set_rows(result.rows);
  for (const auto& [name, value] : result.metrics) {
    (*response_->mutable_metrics())[name] = value;
  }
  response_->mutable_confusion()->Add(result.confusion.begin(), result.confusion.end());
  response_->set_step(step_);
  return absl::OkStatus();
}

void EvaluationStream::End(const absl::Status& status) {
  const absl::MutexLock lock(&mu_);
  EndLocked(status);
}

void EvaluationStream::EndLocked(const absl::Status& status) {
  if (!std::exchange(ended_, true)) {
    caller_.Audit(status);
    Finish(record_.End(status, caller_, caller_.model()));
  }
}

void EvaluationStream::OnCancel() {
  End(absl::CancelledError("the client disconnected or cancelled the call"));
}

}  // namespace braid
