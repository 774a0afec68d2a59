// Operations as messages of the method Stream, whichever method sends them. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "braid/v1/training.pb.h"
#include "client/cpp/operation.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace braid::client {

void MoveTo(std::vector<Tensor> tensors, google::protobuf::RepeatedPtrField<v1::Tensor>* out);

v1::StreamRequest StepMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                              const StepOptions& options);
v1::StreamRequest ForwardBackwardMessage(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                         bool report_split);
v1::StreamRequest OptimStepMessage(const v1::HyperParameters& hyper_parameters);
v1::StreamRequest ForwardMessage(std::vector<Tensor> inputs, ForwardOptions options);
v1::StreamRequest BackwardMessage(std::vector<Tensor> output_gradients);
v1::StreamRequest PublishMessage();

// Whose operation it is, who sends it, and which it is. Of these functions' messages an operation
// is always set.
void Address(const std::string& trainer, const v1::Sender& sender, int64_t sequence,
             v1::StreamRequest* operation);
int64_t SequenceOf(const v1::StreamRequest& operation);

// Whether it is the reply to an operation of this kind.
bool Answers(const v1::StreamResponse& reply, const v1::StreamRequest& operation);
// `reply` must answer an operation.
const v1::OperationStatus& StatusOf(const v1::StreamResponse& reply);
v1::OperationStatus* MutableStatusOf(v1::StreamResponse* reply);
// What is known of an operation that was applied, and whose reply is lost, from a later one's.
v1::StreamResponse LostReply(const v1::StreamRequest& operation, const v1::OperationStatus& later);

// The reply to a Step or a ForwardBackward.
LossResult ReadLoss(v1::StreamResponse reply);
// The reply to an operation of any kind.
OperationResult ReadStatus(const v1::StreamResponse& reply);
ForwardResult ReadForward(v1::StreamResponse reply);
int64_t ReadVersion(const v1::StreamResponse& reply);

}  // namespace braid::client
