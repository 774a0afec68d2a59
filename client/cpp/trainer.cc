#include "client/cpp/trainer.h"

#include <utility>

#include "absl/time/clock.h"
#include "client/cpp/call.h"
#include "client/cpp/download.h"
#include "client/cpp/messages.h"

namespace braid::client {
namespace {

using Stub = v1::TrainingService::StubInterface;

// Passes each piece of a streamed reply to `take`. An error of `take` cancels the call and is
// stored in `fault`.
template <typename Piece>
grpc::Status ReadPieces(grpc::ClientContext* context, grpc::ClientReaderInterface<Piece>& stream,
                        absl::FunctionRef<absl::Status(const Piece&)> take, absl::Status* fault) {
  Piece piece;
  while (stream.Read(&piece)) {
    *fault = take(piece);
    if (!fault->ok()) {
      context->TryCancel();
      break;
    }
  }
  return stream.Finish();
}

}  // namespace

Trainer::Trainer(std::shared_ptr<Handle> handle, v1::Trainer info)
    : handle_(std::move(handle)), info_(std::move(info)) {}

absl::StatusOr<LossResult> Trainer::Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                         const StepOptions& options) {
  absl::StatusOr<v1::StreamResponse> reply =
      handle_->Execute(StepMessage(std::move(inputs), std::move(targets), options));
  if (!reply.ok()) return reply.status();
  return ReadLoss(*std::move(reply));
}

absl::StatusOr<LossResult> Trainer::ForwardBackward(std::vector<Tensor> inputs,
                                                    std::vector<Tensor> targets,
                                                    bool report_split) {
  absl::StatusOr<v1::StreamResponse> reply =
      handle_->Execute(ForwardBackwardMessage(std::move(inputs), std::move(targets), report_split));
  if (!reply.ok()) return reply.status();
  return ReadLoss(*std::move(reply));
}

absl::StatusOr<OperationResult> Trainer::OptimStep(const v1::HyperParameters& hyper_parameters) {
  absl::StatusOr<v1::StreamResponse> reply = handle_->Execute(OptimStepMessage(hyper_parameters));
  if (!reply.ok()) return reply.status();
  return ReadStatus(*reply);
}

absl::StatusOr<ForwardResult> Trainer::Forward(std::vector<Tensor> inputs, ForwardOptions options) {
  absl::StatusOr<v1::StreamResponse> reply =
      handle_->Execute(ForwardMessage(std::move(inputs), std::move(options)));
  if (!reply.ok()) return reply.status();
  return ReadForward(*std::move(reply));
}

absl::StatusOr<OperationResult> Trainer::Backward(std::vector<Tensor> output_gradients) {
  absl::StatusOr<v1::StreamResponse> reply =
      handle_->Execute(BackwardMessage(std::move(output_gradients)));
  if (!reply.ok()) return reply.status();
  return ReadStatus(*reply);
}

absl::StatusOr<int64_t> Trainer::Publish() {
  absl::StatusOr<v1::StreamResponse> reply = handle_->Execute(PublishMessage());
  if (!reply.ok()) return reply.status();
  return ReadVersion(*reply);
}

absl::StatusOr<std::unique_ptr<Stream>> Trainer::OpenStream(const StreamOptions& options) {
  if (options.depth < 1 || options.buffer_operations < 1 || options.buffer_bytes < 1) {
    return absl::InvalidArgumentError("stream options: depth and buffer limits must be at least 1");
  }
  if (absl::Status status = handle_->CheckNoStream(); !status.ok()) return status;
  handle_->log().Limit(options.buffer_operations, options.buffer_bytes);
  return std::make_unique<Stream>(handle_, options);
}

absl::StatusOr<v1::EvaluateResponse> Trainer::Evaluate(
    absl::FunctionRef<std::optional<Batch>()> next, const EvaluateOptions& options) {
  std::optional<Batch> batch = next();
  if (!batch) return absl::InvalidArgumentError("batches: empty (expected at least one)");
  v1::EvaluateRequest request;
  request.set_trainer(handle_->name());
  request.mutable_metrics()->Add(options.metrics.begin(), options.metrics.end());
  request.set_k(options.k);
  v1::EvaluateResponse reply;
  absl::Status status = handle_->ReadOnce([&](const CallPolicy& policy) {
    grpc::ClientContext context;
    SetDeadline(context, absl::Now() + policy.timeout);
    const auto stream = handle_->training().Evaluate(&context, &reply);
    absl::Status send_error;
    for (; batch; batch = next()) {
      MoveTensors(std::move(batch->inputs), request.mutable_inputs());
      MoveTensors(std::move(batch->targets), request.mutable_targets());
      send_error = CheckSendable(request.ByteSizeLong());
      if (!send_error.ok()) context.TryCancel();
      if (!send_error.ok() || !stream->Write(request)) break;
      request.Clear();
    }
    stream->WritesDone();
    absl::Status finished = ToAbsl(stream->Finish());
    return send_error.ok() ? finished : send_error;
  });
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<v1::EvaluateResponse> Trainer::Evaluate(std::vector<Batch> batches,
                                                       const EvaluateOptions& options) {
  size_t next = 0;
  return Evaluate(
      [&]() -> std::optional<Batch> {
        if (next == batches.size()) return std::nullopt;
        return std::move(batches[next++]);
      },
      options);
}

absl::StatusOr<v1::Checkpoint> Trainer::SaveCheckpoint() { return handle_->SaveCheckpoint(); }

absl::StatusOr<std::vector<v1::Checkpoint>> Trainer::ListCheckpoints() {
  v1::ListCheckpointsRequest request;
  request.set_trainer(handle_->name());
  absl::StatusOr<v1::ListCheckpointsResponse> reply =
      Call(handle_->training(), &Stub::ListCheckpoints, request, handle_->policy());
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Checkpoint>(reply->checkpoints().begin(), reply->checkpoints().end());
}

absl::StatusOr<v1::Checkpoint> Trainer::RestoreCheckpoint(const std::string& name) {
  if (absl::Status status = handle_->CheckNoStream(); !status.ok()) return status;
  CallPolicy policy = handle_->policy();
  const absl::Time deadline = absl::Now() + policy.timeout;
  if (name.empty()) {
    if (absl::Status status = handle_->Replay(deadline).status(); !status.ok()) return status;
  }
  policy.timeout = deadline - absl::Now();
  v1::RestoreCheckpointRequest request;
  request.set_trainer(handle_->name());
  request.set_checkpoint(name);
  absl::StatusOr<v1::RestoreCheckpointResponse> reply =
      Call(handle_->training(), &Stub::RestoreCheckpoint, request, policy);
  if (!reply.ok()) return reply.status();
  info_ = std::move(*reply->mutable_trainer());
  handle_->StartFrom(info_);
  return std::move(*reply->mutable_checkpoint());
}

absl::StatusOr<std::vector<StateEntry>> Trainer::StateDict() {
  v1::GetStateDictRequest request;
  request.set_trainer(handle_->name());
  StateDictAssembler assembler;
  absl::Status status = handle_->Read([&](const CallPolicy& policy) {
    absl::Status fault;
    absl::Status ended = CallWithRetry(policy, [&](grpc::ClientContext* context) {
      assembler = {};
      fault = absl::OkStatus();
      return ReadPieces<v1::GetStateDictResponse>(
          context, *handle_->training().GetStateDict(context, request),
          [&](const v1::GetStateDictResponse& piece) { return assembler.Add(piece); }, &fault);
    });
    return fault.ok() ? ended : fault;
  });
  if (!status.ok()) return status;
  return assembler.Finish();
}

absl::StatusOr<int64_t> Trainer::DownloadModel(const std::string& path,
                                               v1::DownloadModelRequest::Format format) {
  absl::StatusOr<std::unique_ptr<FileReceiver>> file = FileReceiver::Create(path);
  if (!file.ok()) return file.status();
  v1::DownloadModelRequest request;
  request.set_trainer(handle_->name());
  request.set_format(format);
  absl::Status status = handle_->Read([&](const CallPolicy& policy) {
    absl::Status fault;
    absl::Status ended = CallWithRetry(policy, [&](grpc::ClientContext* context) {
      fault = (*file)->Restart();
      if (!fault.ok()) return grpc::Status::CANCELLED;
      return ReadPieces<v1::DownloadModelResponse>(
          context, *handle_->training().DownloadModel(context, request),
          [&](const v1::DownloadModelResponse& piece) { return (*file)->Add(piece); }, &fault);
    });
    return fault.ok() ? ended : fault;
  });
  if (!status.ok()) return status;
  return (*file)->Commit();
}

absl::Status Trainer::Refresh() {
  absl::StatusOr<v1::Trainer> info = handle_->Refresh();
  if (!info.ok()) return info.status();
  info_ = *std::move(info);
  return absl::OkStatus();
}

absl::Status Trainer::Delete() {
  v1::DeleteTrainerRequest request;
  request.set_name(handle_->name());
  v1::DeleteTrainerResponse reply;
  int attempts = 0;
  absl::Status status = CallInto(handle_->training(), &Stub::DeleteTrainer, request,
                                 handle_->policy(), &reply, &attempts);
  // An earlier attempt deleted the trainer, but its reply was lost.
  if (attempts > 1 && absl::IsNotFound(status)) return absl::OkStatus();
  return status;
}

}  // namespace braid::client
