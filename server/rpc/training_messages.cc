#include "server/rpc/training_messages.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/rpc/fingerprint.h"
#include "server/rpc/tensor_codec.h"

namespace braid {
namespace {

absl::StatusOr<LossSpec> ReadLoss(const braid::v1::Loss& message) {
  LossSpec spec;
  spec.name = message.name();
  spec.output = message.output();
  spec.target = message.target();
  spec.label_smoothing = message.label_smoothing();
  if (message.has_ignore_index()) {
    spec.ignore_index = message.ignore_index();
  }
  switch (message.reduction()) {
    case braid::v1::Loss::REDUCTION_UNSPECIFIED:
    case braid::v1::Loss::REDUCTION_MEAN:
      spec.reduction = Reduction::kMean;
      return spec;
    case braid::v1::Loss::REDUCTION_SUM:
      spec.reduction = Reduction::kSum;
      return spec;
    default:
      return InvalidField("loss.reduction",
                          absl::StrCat(message.reduction(), " is unknown; expected MEAN or SUM"));
  }
}

absl::StatusOr<OptimizerSpec> ReadOptimizer(const braid::v1::Optimizer& message) {
  if (message.has_sgd()) {
    const braid::v1::Sgd& sgd = message.sgd();
    SgdSpec spec;
    spec.lr = sgd.has_lr() ? sgd.lr() : spec.lr;
    spec.momentum = sgd.momentum();
    spec.dampening = sgd.dampening();
    spec.weight_decay = sgd.weight_decay();
    spec.nesterov = sgd.nesterov();
    return spec;
  }
  if (message.has_adamw()) {
    const braid::v1::AdamW& adamw = message.adamw();
    AdamWSpec spec;
    spec.lr = adamw.has_lr() ? adamw.lr() : spec.lr;
    spec.beta1 = adamw.has_beta1() ? adamw.beta1() : spec.beta1;
    spec.beta2 = adamw.has_beta2() ? adamw.beta2() : spec.beta2;
    spec.eps = adamw.has_eps() ? adamw.eps() : spec.eps;
    spec.weight_decay = adamw.has_weight_decay() ? adamw.weight_decay() : spec.weight_decay;
    return spec;
  }
  return InvalidField("optimizer", "is missing; expected sgd or adamw");
}

// A batch: what Step, ForwardBackward and Forward share.
template <typename Request>
absl::StatusOr<Operation> ReadBatch(const Request& request, OperationKind kind) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = request.sequence();
  operation.fingerprint = FingerprintOf(request);
  BRAID_ASSIGN_OR_RETURN(operation.inputs, ReadTensors(request.inputs(), "inputs"));
  BRAID_ASSIGN_OR_RETURN(operation.targets, ReadTensors(request.targets(), "targets"));
  return operation;
}

void WriteOptimizer(const OptimizerSpec& spec, braid::v1::Optimizer* message) {
  if (const auto* sgd = std::get_if<SgdSpec>(&spec)) {
    message->mutable_sgd()->set_lr(sgd->lr);
    message->mutable_sgd()->set_momentum(sgd->momentum);
    message->mutable_sgd()->set_dampening(sgd->dampening);
    message->mutable_sgd()->set_weight_decay(sgd->weight_decay);
    message->mutable_sgd()->set_nesterov(sgd->nesterov);
    return;
  }
  const auto& adamw = std::get<AdamWSpec>(spec);
  message->mutable_adamw()->set_lr(adamw.lr);
  message->mutable_adamw()->set_beta1(adamw.beta1);
  message->mutable_adamw()->set_beta2(adamw.beta2);
  message->mutable_adamw()->set_eps(adamw.eps);
  message->mutable_adamw()->set_weight_decay(adamw.weight_decay);
}

void WriteLoss(const LossSpec& spec, braid::v1::Loss* message) {
  message->set_name(spec.name);
  message->set_output(spec.output);
  message->set_target(spec.target);
  message->set_reduction(spec.reduction == Reduction::kMean ? braid::v1::Loss::REDUCTION_MEAN
                                                            : braid::v1::Loss::REDUCTION_SUM);
  message->set_label_smoothing(spec.label_smoothing);
  if (spec.ignore_index) {
    message->set_ignore_index(*spec.ignore_index);
  }
}

}  // namespace

absl::StatusOr<TrainerSpec> ReadSpec(const braid::v1::CreateTrainerRequest& request) {
  TrainerSpec spec;
  spec.name = request.name();
  spec.model = request.model();
  spec.base_version = request.version();
  spec.request_id = request.request_id();
  if (request.version() < 0) {
    return InvalidField("version", absl::StrCat(request.version(),
                                                " is no version; expected a number from 1, or 0"));
  }
  BRAID_ASSIGN_OR_RETURN(spec.loss, ReadLoss(request.loss()));
  BRAID_ASSIGN_OR_RETURN(spec.optimizer, ReadOptimizer(request.optimizer()));
  return spec;
}

HyperParameters ReadHyperParameters(const braid::v1::HyperParameters& message) {
  HyperParameters hyper;
  if (message.has_lr()) {
    hyper.lr = message.lr();
  }
  if (message.has_weight_decay()) {
    hyper.weight_decay = message.weight_decay();
  }
  if (message.has_momentum()) {
    hyper.momentum = message.momentum();
  }
  return hyper;
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::StepRequest& request) {
  BRAID_ASSIGN_OR_RETURN(Operation operation, ReadBatch(request, OperationKind::kStep));
  operation.hyper_parameters = ReadHyperParameters(request.hyper_parameters());
  return operation;
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardBackwardRequest& request) {
  return ReadBatch(request, OperationKind::kForwardBackward);
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::OptimStepRequest& request) {
  Operation operation;
  operation.kind = OperationKind::kOptimStep;
  operation.sequence = request.sequence();
  operation.fingerprint = FingerprintOf(request);
  operation.hyper_parameters = ReadHyperParameters(request.hyper_parameters());
  return operation;
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardRequest& request) {
  BRAID_ASSIGN_OR_RETURN(Operation operation, ReadBatch(request, OperationKind::kForward));
  switch (request.mode()) {
    case braid::v1::ForwardRequest::MODE_UNSPECIFIED:
    case braid::v1::ForwardRequest::MODE_TRAIN:
      operation.mode = Mode::kTrain;
      return operation;
    case braid::v1::ForwardRequest::MODE_EVAL:
      operation.mode = Mode::kEval;
      return operation;
    default:
      return InvalidField("mode",
                          absl::StrCat(request.mode(), " is unknown; expected TRAIN or EVAL"));
  }
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::PublishRequest& request) {
  Operation operation;
  operation.kind = OperationKind::kPublish;
  operation.sequence = request.sequence();
  operation.fingerprint = FingerprintOf(request);
  return operation;
}

void WriteTrainer(const TrainerInfo& info, braid::v1::Trainer* message) {
  message->set_name(info.spec.name);
  message->set_model(info.spec.model);
  message->set_base_version(info.spec.base_version);
  WriteLoss(info.spec.loss, message->mutable_loss());
  WriteOptimizer(info.spec.optimizer, message->mutable_optimizer());
  for (const std::string& device : info.devices) {
    message->add_devices(device);
  }
  message->set_step(info.step);
  message->set_applied_sequence(info.applied_sequence);
  message->set_durable_sequence(info.durable_sequence);
  message->set_accumulated(info.accumulated);
}

void WriteStatus(const OperationResult& result, bool with_chunks,
                 braid::v1::OperationStatus* message) {
  message->set_applied_sequence(result.applied_sequence);
  message->set_durable_sequence(result.durable_sequence);
  message->set_step(result.step);
  message->set_replayed(result.replayed);
  for (size_t c = 0; with_chunks && c < result.chunks.size(); ++c) {
    auto* chunk = message->add_chunks();
    chunk->set_device(result.chunks[c].device);
    chunk->set_rows(result.chunks[c].rows);
  }
}

}  // namespace braid
