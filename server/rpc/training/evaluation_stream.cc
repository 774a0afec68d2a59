#include "server/rpc/training/evaluation_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "server/base/status.h"
#include "server/rpc/inference/tensor_codec.h"

namespace braid {
namespace {

constexpr int64_t kDefaultK = 5;

}  // namespace

void EvaluationStream::OnRequest() {
  if (const absl::Status status = Add(); !status.ok()) {
    End(status);
  }
}

void EvaluationStream::OnLast() { End(WriteResult()); }

absl::Status EvaluationStream::Add() {
  // Only the first message names the trainer.
  BRAID_RETURN_IF_ERROR(
      Admit({.model = {}, .trainer = run_ ? run_->trainer : request().trainer()}));
  if (!run_) {
    run_ = {request().trainer(),
            {request().metrics().begin(), request().metrics().end()},
            request().k() == 0 ? kDefaultK : request().k()};
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> inputs, ReadTensors(request().inputs(), "inputs"));
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> targets,
                         ReadTensors(request().targets(), "targets"));
  trainers_->Evaluate(
      &*run_, std::move(inputs), std::move(targets),
      [this, alive = self()](const absl::StatusOr<int64_t>& step) { OnBatchEvaluated(step); });
  return absl::OkStatus();
}

void EvaluationStream::OnBatchEvaluated(const absl::StatusOr<int64_t>& step) {
  if (!step.ok()) {
    End(step.status());
    return;
  }
  step_ = *step;
  Next();
}

absl::Status EvaluationStream::WriteResult() {
  if (!run_) {
    return InvalidField("inputs", "missing (expected at least one batch)");
  }
  const EvaluationResult result = TrainerRegistry::Result(*run_);
  trainers_->TrackEvaluation(*run_, step_, result);
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

}  // namespace braid
