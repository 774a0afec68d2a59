#include "client/cpp/trainer.h"

#include <utility>

#include "google/protobuf/repeated_ptr_field.h"

namespace braid::client {
namespace {

using Stub = v1::TrainingService::StubInterface;
using ProtoTensors = google::protobuf::RepeatedPtrField<v1::Tensor>;

void MoveTo(std::vector<Tensor> tensors, ProtoTensors* out) {
  for (Tensor& tensor : tensors) {
    v1::Tensor* proto = out->Add();
    proto->set_name(std::move(tensor.name));
    proto->set_datatype(std::move(tensor.datatype));
    proto->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    proto->set_data(std::move(tensor.data));
  }
}

std::vector<Tensor> TakeFrom(ProtoTensors* protos) {
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<size_t>(protos->size()));
  for (v1::Tensor& proto : *protos) {
    tensors.push_back({std::move(*proto.mutable_name()),
                       std::move(*proto.mutable_datatype()),
                       {proto.shape().begin(), proto.shape().end()},
                       std::move(*proto.mutable_data())});
  }
  return tensors;
}

}  // namespace

Trainer::Trainer(std::shared_ptr<Stub> stub, v1::Trainer info, CallPolicy policy)
    : stub_(std::move(stub)),
      policy_(policy),
      info_(std::move(info)),
      sequence_(info_.applied_sequence()) {}

template <typename Request, typename Reply>
absl::StatusOr<Reply> Trainer::Apply(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*),
                                     Request& request) {
  request.set_trainer(info_.name());
  request.set_sequence(sequence_ + 1);
  absl::StatusOr<Reply> reply = Call(*stub_, method, request, policy_);
  if (reply.ok()) ++sequence_;
  return reply;
}

absl::StatusOr<LossResult> Trainer::Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                         const StepOptions& options) {
  v1::StepRequest request;
  MoveTo(std::move(inputs), request.mutable_inputs());
  MoveTo(std::move(targets), request.mutable_targets());
  *request.mutable_hyper_parameters() = options.hyper_parameters;
  request.set_report_split(options.report_split);
  absl::StatusOr<v1::StepResponse> reply = Apply(&Stub::Step, request);
  if (!reply.ok()) return reply.status();
  return LossResult{std::move(*reply->mutable_status()), reply->loss()};
}

absl::StatusOr<LossResult> Trainer::ForwardBackward(std::vector<Tensor> inputs,
                                                    std::vector<Tensor> targets,
                                                    bool report_split) {
  v1::ForwardBackwardRequest request;
  MoveTo(std::move(inputs), request.mutable_inputs());
  MoveTo(std::move(targets), request.mutable_targets());
  request.set_report_split(report_split);
  absl::StatusOr<v1::ForwardBackwardResponse> reply = Apply(&Stub::ForwardBackward, request);
  if (!reply.ok()) return reply.status();
  return LossResult{std::move(*reply->mutable_status()), reply->loss()};
}

absl::StatusOr<v1::OperationStatus> Trainer::OptimStep(
    const v1::HyperParameters& hyper_parameters) {
  v1::OptimStepRequest request;
  *request.mutable_hyper_parameters() = hyper_parameters;
  absl::StatusOr<v1::OptimStepResponse> reply = Apply(&Stub::OptimStep, request);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_status());
}

absl::StatusOr<ForwardResult> Trainer::Forward(std::vector<Tensor> inputs, ForwardOptions options) {
  v1::ForwardRequest request;
  MoveTo(std::move(inputs), request.mutable_inputs());
  MoveTo(std::move(options.targets), request.mutable_targets());
  request.set_mode(options.mode);
  request.set_report_split(options.report_split);
  absl::StatusOr<v1::ForwardResponse> reply = Apply(&Stub::Forward, request);
  if (!reply.ok()) return reply.status();
  ForwardResult result{std::move(*reply->mutable_status()), TakeFrom(reply->mutable_outputs()), {}};
  if (reply->has_loss()) result.loss = reply->loss();
  return result;
}

absl::StatusOr<int64_t> Trainer::Publish() {
  v1::PublishRequest request;
  absl::StatusOr<v1::PublishResponse> reply = Apply(&Stub::Publish, request);
  if (!reply.ok()) return reply.status();
  return reply->version();
}

absl::StatusOr<std::vector<StateEntry>> Trainer::StateDict() {
  v1::GetStateDictRequest request;
  request.set_trainer(info_.name());
  StateDictAssembler assembler;
  absl::Status fault;
  absl::Status status = Attempt(policy_, [&](grpc::ClientContext* context) {
    assembler = {};
    fault = absl::OkStatus();
    auto stream = stub_->GetStateDict(context, request);
    v1::GetStateDictResponse piece;
    while (stream->Read(&piece)) {
      fault = assembler.Add(piece);
      if (!fault.ok()) {
        context->TryCancel();
        break;
      }
    }
    return stream->Finish();
  });
  if (!fault.ok()) return fault;
  if (!status.ok()) return status;
  return assembler.Finish();
}

absl::Status Trainer::Refresh() {
  v1::GetTrainerRequest request;
  request.set_name(info_.name());
  absl::StatusOr<v1::GetTrainerResponse> reply = Call(*stub_, &Stub::GetTrainer, request, policy_);
  if (!reply.ok()) return reply.status();
  info_ = std::move(*reply->mutable_trainer());
  sequence_ = info_.applied_sequence();
  return absl::OkStatus();
}

absl::Status Trainer::Delete() {
  v1::DeleteTrainerRequest request;
  request.set_name(info_.name());
  int attempts = 0;
  absl::Status status = Attempt(policy_, [&](grpc::ClientContext* context) {
    ++attempts;
    v1::DeleteTrainerResponse reply;
    return stub_->DeleteTrainer(context, request, &reply);
  });
  // An earlier attempt deleted it, and its reply was lost.
  if (attempts > 1 && absl::IsNotFound(status)) return absl::OkStatus();
  return status;
}

}  // namespace braid::client
