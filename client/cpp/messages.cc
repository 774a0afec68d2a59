#include "client/cpp/messages.h"

#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace braid::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the field of the oneof that is set. StreamRequest and StreamResponse use the same field
// numbers.
const FieldDescriptor* SetField(const Message& message) {
  return message.GetReflection()->GetOneofFieldDescriptor(message,
                                                          message.GetDescriptor()->oneof_decl(0));
}

const Message& Inner(const Message& message) {
  return message.GetReflection()->GetMessage(message, SetField(message));
}

std::vector<Tensor> TakeFrom(google::protobuf::RepeatedPtrField<v1::Tensor>* protos) {
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

void MoveTensors(std::vector<Tensor> tensors, google::protobuf::RepeatedPtrField<v1::Tensor>* out) {
  for (Tensor& tensor : tensors) {
    v1::Tensor* proto = out->Add();
    proto->set_name(std::move(tensor.name));
    proto->set_datatype(std::move(tensor.datatype));
    proto->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    proto->set_data(std::move(tensor.data));
  }
}

v1::StreamRequest StepMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                              const StepOptions& options) {
  v1::StreamRequest operation;
  v1::StepRequest& request = *operation.mutable_step();
  MoveTensors(std::move(inputs), request.mutable_inputs());
  MoveTensors(std::move(targets), request.mutable_targets());
  *request.mutable_hyper_parameters() = options.hyper_parameters;
  request.set_report_split(options.report_split);
  return operation;
}

v1::StreamRequest ForwardBackwardMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                         bool report_split) {
  v1::StreamRequest operation;
  v1::ForwardBackwardRequest& request = *operation.mutable_forward_backward();
  MoveTensors(std::move(inputs), request.mutable_inputs());
  MoveTensors(std::move(targets), request.mutable_targets());
  request.set_report_split(report_split);
  return operation;
}

v1::StreamRequest OptimStepMessage(const v1::HyperParameters& hyper_parameters) {
  v1::StreamRequest operation;
  *operation.mutable_optim_step()->mutable_hyper_parameters() = hyper_parameters;
  return operation;
}

v1::StreamRequest ForwardMessage(std::vector<Tensor> inputs, ForwardOptions options) {
  v1::StreamRequest operation;
  v1::ForwardRequest& request = *operation.mutable_forward();
  MoveTensors(std::move(inputs), request.mutable_inputs());
  MoveTensors(std::move(options.targets), request.mutable_targets());
  request.set_mode(options.mode);
  request.set_report_split(options.report_split);
  request.set_keep_graph(options.keep_graph);
  return operation;
}

v1::StreamRequest BackwardMessage(std::vector<Tensor> output_gradients) {
  v1::StreamRequest operation;
  MoveTensors(std::move(output_gradients),
              operation.mutable_backward()->mutable_output_gradients());
  return operation;
}

v1::StreamRequest PublishMessage() {
  v1::StreamRequest operation;
  operation.mutable_publish();
  return operation;
}

void SetHeader(const std::string& trainer, const v1::Sender& sender, int64_t sequence,
               v1::StreamRequest* operation) {
  Message* inner = operation->GetReflection()->MutableMessage(operation, SetField(*operation));
  const google::protobuf::Descriptor* type = inner->GetDescriptor();
  inner->GetReflection()->SetString(inner, type->FindFieldByName("trainer"), trainer);
  inner->GetReflection()->SetInt64(inner, type->FindFieldByName("sequence"), sequence);
  inner->GetReflection()->MutableMessage(inner, type->FindFieldByName("sender"))->CopyFrom(sender);
}

int64_t SequenceOf(const v1::StreamRequest& operation) {
  const Message& inner = Inner(operation);
  return inner.GetReflection()->GetInt64(inner, inner.GetDescriptor()->FindFieldByName("sequence"));
}

bool IsReplyTo(const v1::StreamResponse& reply, const v1::StreamRequest& operation) {
  return static_cast<int>(reply.reply_case()) == static_cast<int>(operation.operation_case());
}

const v1::OperationStatus& StatusOf(const v1::StreamResponse& reply) {
  const Message& inner = Inner(reply);
  return static_cast<const v1::OperationStatus&>(
      inner.GetReflection()->GetMessage(inner, inner.GetDescriptor()->FindFieldByName("status")));
}

v1::OperationStatus* MutableStatusOf(v1::StreamResponse* reply) {
  Message* inner = reply->GetReflection()->MutableMessage(reply, SetField(*reply));
  return static_cast<v1::OperationStatus*>(inner->GetReflection()->MutableMessage(
      inner, inner->GetDescriptor()->FindFieldByName("status")));
}

v1::StreamResponse ReplyFromLater(const v1::StreamRequest& operation,
                                  const v1::OperationStatus& later) {
  v1::StreamResponse reply;
  const FieldDescriptor* field =
      v1::StreamResponse::descriptor()->FindFieldByNumber(SetField(operation)->number());
  reply.GetReflection()->MutableMessage(&reply, field);
  v1::OperationStatus* status = MutableStatusOf(&reply);
  status->set_applied_sequence(SequenceOf(operation));
  status->set_durable_sequence(later.durable_sequence());
  status->set_step(later.step());
  return reply;
}

LossResult ReadLoss(v1::StreamResponse reply) {
  const double loss = reply.has_step() ? reply.step().loss() : reply.forward_backward().loss();
  v1::OperationStatus* status = reply.has_step()
                                    ? reply.mutable_step()->mutable_status()
                                    : reply.mutable_forward_backward()->mutable_status();
  return {std::move(*status), loss};
}

OperationResult ReadStatus(const v1::StreamResponse& reply) { return {StatusOf(reply)}; }

ForwardResult ReadForward(v1::StreamResponse reply) {
  v1::ForwardResponse& forward = *reply.mutable_forward();
  ForwardResult result{
      std::move(*forward.mutable_status()), TakeFrom(forward.mutable_outputs()), {}};
  if (forward.has_loss()) result.loss = forward.loss();
  return result;
}

int64_t ReadVersion(const v1::StreamResponse& reply) { return reply.publish().version(); }

}  // namespace braid::client
