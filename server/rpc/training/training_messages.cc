#include "server/rpc/training/training_messages.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/durability_message.h"
#include "server/rpc/inference/tensor_codec.h"
#include "server/rpc/training/fingerprint.h"
#include "server/rpc/training/spec_messages.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {
namespace {

// Fills in the fields that all operations share.
template <typename Request>
Operation Begin(const Request& request, OperationKind kind) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = request.sequence();
  operation.fingerprint = FingerprintOf(request);
  operation.trainer_id = request.sender().trainer_id();
  operation.client_id = request.sender().client_id();
  operation.last_operator = request.sender().last_operator();
  operation.write_request = [&request](std::string* out) { request.AppendToString(out); };
  return operation;
}

constexpr size_t kMaxBatchId = 256;

// Reads the batch of Step, ForwardBackward and Forward.
template <typename Request>
absl::StatusOr<Operation> ReadBatch(const Request& request, OperationKind kind) {
  Operation operation = Begin(request, kind);
  BRAID_ASSIGN_OR_RETURN(operation.inputs, ReadTensors(request.inputs(), "inputs"));
  BRAID_ASSIGN_OR_RETURN(operation.targets, ReadTensors(request.targets(), "targets"));
  operation.report_split = request.report_split();
  if (request.batch_id().size() > kMaxBatchId) {
    return InvalidField("batch_id", absl::StrCat(request.batch_id().size(),
                                                 " bytes (expected at most ", kMaxBatchId, ")"));
  }
  operation.batch_id = request.batch_id();
  return operation;
}

void WriteRates(const std::vector<GroupLearningRate>& rates,
                google::protobuf::RepeatedPtrField<braid::v1::GroupLearningRate>* messages) {
  for (const GroupLearningRate& rate : rates) {
    auto* message = messages->Add();
    message->set_group(rate.group);
    message->set_lr(rate.lr);
  }
}

void WriteStatus(const OperationResult& result, bool with_chunks,
                 braid::v1::OperationStatus* message) {
  message->set_applied_sequence(result.applied_sequence);
  message->set_durable_sequence(result.durable_sequence);
  message->set_step(result.step);
  message->set_replayed(result.replayed);
  message->set_skipped(result.skipped);
  if (result.gradient_norm) {
    message->set_gradient_norm(*result.gradient_norm);
  }
  if (result.lr) {
    message->set_lr(*result.lr);
  }
  WriteRates(result.lrs, message->mutable_lrs());
  for (const PhaseTime& phase : result.phases) {
    auto* out = message->add_phases();
    out->set_name(phase.name);
    out->set_seconds(absl::ToDoubleSeconds(phase.time));
  }
  for (size_t c = 0; with_chunks && c < result.chunks.size(); ++c) {
    const TrainingChunk& chunk = result.chunks[c];
    auto* out = message->add_chunks();
    out->set_device(chunk.device);
    out->set_rows(chunk.rows);
    out->set_stage(chunk.stage);
    for (const std::string& shape : chunk.input_shapes) {
      out->add_input_shapes(shape);
    }
    for (const std::string& shape : chunk.output_shapes) {
      out->add_output_shapes(shape);
    }
  }
}

}  // namespace

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
  hyper.group_lr.assign(message.group_lr().begin(), message.group_lr().end());
  if (message.has_metric()) {
    hyper.metric = message.metric();
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
  Operation operation = Begin(request, OperationKind::kOptimStep);
  operation.hyper_parameters = ReadHyperParameters(request.hyper_parameters());
  return operation;
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::ForwardRequest& request) {
  BRAID_ASSIGN_OR_RETURN(Operation operation, ReadBatch(request, OperationKind::kForward));
  operation.keep_graph = request.keep_graph();
  switch (request.mode()) {
    case braid::v1::ForwardRequest::MODE_UNSPECIFIED:
    case braid::v1::ForwardRequest::MODE_TRAIN:
      operation.mode = Mode::kTrain;
      return operation;
    case braid::v1::ForwardRequest::MODE_EVAL:
      operation.mode = Mode::kEval;
      return operation;
    default:
      return InvalidField(
          "mode", absl::StrCat("unknown value ", request.mode(), " (expected TRAIN or EVAL)"));
  }
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::BackwardRequest& request) {
  Operation operation = Begin(request, OperationKind::kBackward);
  BRAID_ASSIGN_OR_RETURN(operation.output_gradients,
                         ReadTensors(request.output_gradients(), "output_gradients"));
  return operation;
}

absl::StatusOr<Operation> ReadOperation(const braid::v1::PublishRequest& request) {
  Operation operation = Begin(request, OperationKind::kPublish);
  operation.target_model = request.target_model();
  operation.wait_durable = request.wait_durable();
  return operation;
}

absl::Status CheckNotOwnedByJob(absl::string_view trainer) {
  if (!absl::StartsWith(trainer, kJobTrainerPrefix)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("trainer: '", Excerpt(trainer),
                   "' belongs to a job, and only the job may change it (CancelJob stops it; a new "
                   "job with from_trainer continues the training)"));
}

void WriteTrainer(const TrainerInfo& info, braid::v1::Trainer* message) {
  WriteSpec(info.spec, message);
  for (const std::string& device : info.devices) {
    message->add_devices(device);
  }
  message->set_id(info.id);
  message->set_last_operator(info.last_operator);
  message->mutable_notes()->Add(info.notes.begin(), info.notes.end());
  message->set_step(info.step);
  message->set_applied_sequence(info.applied_sequence);
  message->set_durable_sequence(info.durable_sequence);
  message->set_accumulated(info.accumulated);
  message->set_skipped(info.skipped);
  message->set_lr(info.lr);
  message->set_on_disk(info.on_disk);
  WriteRates(info.lrs, message->mutable_lrs());
  for (const DeviceMemory& memory : info.memory) {
    auto* out = message->add_memory();
    out->set_device(memory.device);
    out->set_current_bytes(memory.current);
    out->set_peak_bytes(memory.peak);
  }
}

void WriteReply(const OperationResult& result, bool with_chunks, braid::v1::StepResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
  reply->set_loss(*result.loss);
}

void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::ForwardBackwardResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
  reply->set_loss(*result.loss);
}

void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::OptimStepResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
}

void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::ForwardResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
  for (const HostTensor& output : result.outputs) {
    WriteTensor(output, reply->add_outputs());
  }
  if (result.loss) {
    reply->set_loss(*result.loss);
  }
}

void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::BackwardResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
}

void WriteReply(const OperationResult& result, bool with_chunks,
                braid::v1::PublishResponse* reply) {
  WriteStatus(result, with_chunks, reply->mutable_status());
  reply->set_model(result.model);
  reply->set_version(result.version);
  reply->set_durability(ToMessage(result.durability.durability));
  reply->set_durability_reason(result.durability.reason);
}

void WriteCheckpoint(const CheckpointInfo& info, braid::v1::Checkpoint* message) {
  message->set_name(info.name);
  message->set_step(info.step);
  message->set_sequence(info.sequence);
  message->set_bytes(info.bytes);
  message->set_created(absl::ToDoubleSeconds(info.created - absl::UnixEpoch()));
}

void WriteRecorded(const RecordedOperation& operation, braid::v1::RecordedOperation* message) {
  message->set_line(operation.position.line);
  message->set_sequence(operation.position.sequence);
  message->set_kind(OperationName(operation.summary.kind));
  message->set_time(absl::ToDoubleSeconds(operation.summary.time - absl::UnixEpoch()));
  message->set_batch_id(operation.summary.batch_id);
  message->set_error(operation.error);
  if (!operation.result) {
    return;
  }
  const RecordedResult& result = *operation.result;
  message->set_step(result.step);
  if (result.loss) {
    message->set_loss(*result.loss);
  }
  if (result.gradient_norm) {
    message->set_gradient_norm(*result.gradient_norm);
  }
  if (result.lr) {
    message->set_lr(*result.lr);
  }
  message->set_skipped(result.skipped);
  message->set_model(result.model);
  message->set_version(result.version);
}

void WriteReport(const ReplayReport& report, braid::v1::ReplayTrainerResponse* message) {
  message->set_first_step(report.first_step);
  message->set_last_step(report.last_step);
  message->set_operations(report.operations);
  message->set_checkpoints(report.checkpoints);
  message->set_recorded_with(report.recorded_with);
  message->set_replayed_with(report.replayed_with);
  if (report.difference) {
    braid::v1::ReplayDifference* const difference = message->mutable_difference();
    difference->set_sequence(report.difference->sequence);
    difference->set_step(report.difference->step);
    difference->set_checkpoint(report.difference->checkpoint);
    difference->set_batch_id(report.difference->batch_id);
    difference->set_recorded(report.difference->recorded);
    difference->set_replayed(report.difference->replayed);
  }
}

}  // namespace braid
