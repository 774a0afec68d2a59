// Builds operations as StreamRequest messages and reads their replies. Unary methods use the
// request types of the method Stream. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "braid/v1/training.pb.h"
#include "client/cpp/operation.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace braid::client {

// Appends `tensors` to `out`, moving their bytes.
void MoveTensors(std::vector<Tensor> tensors, google::protobuf::RepeatedPtrField<v1::Tensor>* out);

v1::StreamRequest StepMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                              const StepOptions& options);
v1::StreamRequest ForwardBackwardMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                         bool report_split);
v1::StreamRequest OptimStepMessage(const v1::HyperParameters& hyper_parameters);
v1::StreamRequest ForwardMessage(std::vector<Tensor> inputs, ForwardOptions options);
v1::StreamRequest BackwardMessage(std::vector<Tensor> output_gradients);
v1::StreamRequest PublishMessage();

// Sets the trainer, sender and sequence number of an operation. `operation` must have one of the
// kinds above.
void SetHeader(const std::string& trainer, const v1::Sender& sender, int64_t sequence,
               v1::StreamRequest* operation);
int64_t SequenceOf(const v1::StreamRequest& operation);

// Returns true if `reply` has the kind of `operation`.
bool IsReplyTo(const v1::StreamResponse& reply, const v1::StreamRequest& operation);
// Returns the status of a reply. `reply` must not be empty.
const v1::OperationStatus& StatusOf(const v1::StreamResponse& reply);
v1::OperationStatus* MutableStatusOf(v1::StreamResponse* reply);
// Builds a reply to an operation that was applied but whose own reply was lost. It holds the
// operation's sequence number, and `step` and `durable_sequence` of a later operation.
v1::StreamResponse ReplyFromLater(const v1::StreamRequest& operation,
                                  const v1::OperationStatus& later);

// Converts the reply to a Step or a ForwardBackward.
LossResult ReadLoss(v1::StreamResponse reply);
// Converts the reply to an operation of any kind.
OperationResult ReadStatus(const v1::StreamResponse& reply);
ForwardResult ReadForward(v1::StreamResponse reply);
int64_t ReadVersion(const v1::StreamResponse& reply);

}  // namespace braid::client
