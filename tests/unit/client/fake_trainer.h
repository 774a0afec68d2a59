// Fake trainer with the sequence rules of braid/v1/training.proto but without a model.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "braid/v1/training.pb.h"
#include "client/cpp/messages.h"

namespace braid::client {

// Records the applied operations as its history. A checkpoint covers the history up to a number.
// Thread-compatible.
class FakeTrainer {
 public:
  // Applies an operation, or replays the reply if it is the last one applied.
  grpc::Status Apply(const v1::StreamRequest& operation, v1::StreamResponse* reply) {
    const int64_t sequence = SequenceOf(operation);
    if (sequence == applied() && sequence > 0) return Replay(operation, reply);
    if (sequence != applied() + 1) {
      return {grpc::StatusCode::FAILED_PRECONDITION, absl::StrCat("expected ", applied() + 1)};
    }
    const v1::Sender sender = SenderOf(operation);
    if (!sender.last_operator().empty() && !last_operator_.empty() &&
        sender.last_operator() != last_operator_) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "sender.last_operator: another client"};
    }
    if (auto status = Work(operation, reply); !status.ok()) return status;
    last_operator_ = sender.client_id();
    history_.push_back(
        {Describe(operation), operation.SerializeAsString(), *reply, step_, last_operator_});
    const int64_t every = options.checkpoints().every_operations();
    if (every > 0 && applied() % every == 0) Checkpoint();
    SetStatus(operation, false, reply);
    history_.back().reply = *reply;
    return grpc::Status::OK;
  }

  // Makes the applied operations durable.
  v1::Checkpoint Checkpoint() {
    durable_ = applied();
    v1::Checkpoint checkpoint;
    checkpoint.set_name(absl::StrCat("sequence-", durable_));
    checkpoint.set_sequence(durable_);
    checkpoint.set_step(step_);
    checkpoints_.push_back(checkpoint);
    return checkpoint;
  }
  // Truncates the history to `sequence`.
  void GoBackTo(int64_t sequence) {
    history_.resize(static_cast<size_t>(sequence));
    step_ = history_.empty() ? 0 : history_.back().step;
    last_operator_ = history_.empty() ? "" : history_.back().last_operator;
  }
  // Restores a checkpoint for a client. Other clients can detect it.
  void Restore(int64_t sequence) {
    GoBackTo(sequence);
    durable_ = sequence;
    last_operator_ = absl::StrCat("restored ", ++restored_);
    if (!history_.empty()) history_.back().last_operator = last_operator_;
  }
  // Returns to the newest checkpoint, like a server restart.
  void Restart() { GoBackTo(durable_); }

  // Returns Describe() of every operation in the history.
  std::vector<std::string> history() const {
    std::vector<std::string> history;
    history.reserve(history_.size());
    for (const Entry& entry : history_) history.push_back(entry.description);
    return history;
  }
  // Returns the last operation.
  v1::StreamRequest last() const {
    v1::StreamRequest operation;
    operation.ParseFromString(history_.back().bytes);
    return operation;
  }
  const std::vector<v1::Checkpoint>& checkpoints() const { return checkpoints_; }
  int64_t applied() const { return static_cast<int64_t>(history_.size()); }

  v1::Trainer Info() const {
    v1::Trainer trainer;
    trainer.set_name("t");
    trainer.set_id(id);
    trainer.set_model("toy");
    trainer.set_applied_sequence(applied());
    trainer.set_durable_sequence(durable_);
    trainer.set_step(step_);
    trainer.set_last_operator(last_operator_);
    *trainer.mutable_options() = options;
    return trainer;
  }

  // Returns for example "step 1 of 5", where 5 is the first element of the first input.
  static std::string Describe(const v1::StreamRequest& operation) {
    constexpr const char* kKinds[] = {"",        "step",     "forward_backward", "optim_step",
                                      "forward", "backward", "publish"};
    std::string text = absl::StrCat(kKinds[operation.operation_case()], " ", SequenceOf(operation));
    const auto& inputs =
        operation.has_step() ? operation.step().inputs() : operation.forward_backward().inputs();
    if (inputs.empty() || inputs[0].data().size() < sizeof(float)) return text;
    float first = 0;
    std::memcpy(&first, inputs[0].data().data(), sizeof(first));
    return absl::StrCat(text, " of ", first);
  }

  // Returns the operation's sender.
  static v1::Sender SenderOf(const v1::StreamRequest& operation) {
    const auto* kind =
        operation.GetDescriptor()->FindFieldByNumber(static_cast<int>(operation.operation_case()));
    const google::protobuf::Message& inner = operation.GetReflection()->GetMessage(operation, kind);
    v1::Sender sender;
    sender.CopyFrom(
        inner.GetReflection()->GetMessage(inner, inner.GetDescriptor()->FindFieldByName("sender")));
    return sender;
  }

  std::string id = "1";
  v1::TrainingOptions options;
  // If set, forward passes keep no graph.
  bool loses_graph = false;

 private:
  struct Entry {
    std::string description;
    std::string bytes;
    v1::StreamResponse reply;
    int64_t step;
    std::string last_operator;
  };

  grpc::Status Replay(const v1::StreamRequest& operation, v1::StreamResponse* reply) const {
    if (operation.SerializeAsString() != history_.back().bytes) {
      return {grpc::StatusCode::ABORTED, "another request has this number"};
    }
    *reply = history_.back().reply;
    SetStatus(operation, true, reply);
    return grpc::Status::OK;
  }

  // Executes an operation. The loss is the operation's number; the outputs are the inputs.
  grpc::Status Work(const v1::StreamRequest& operation, v1::StreamResponse* reply) {
    const auto number = static_cast<double>(SequenceOf(operation));
    switch (operation.operation_case()) {
      case v1::StreamRequest::kStep:
        ++step_;
        reply->mutable_step()->set_loss(number);
        if (operation.step().report_split()) AddChunk(operation.step(), reply->mutable_step());
        break;
      case v1::StreamRequest::kForwardBackward:
        reply->mutable_forward_backward()->set_loss(number);
        break;
      case v1::StreamRequest::kOptimStep:
        if (!Last("forward_backward") && !Last("backward")) {
          return {grpc::StatusCode::FAILED_PRECONDITION, "there are no gradients"};
        }
        ++step_;
        reply->mutable_optim_step();
        break;
      case v1::StreamRequest::kForward:
        *reply->mutable_forward()->mutable_outputs() = operation.forward().inputs();
        if (operation.forward().targets_size() > 0) reply->mutable_forward()->set_loss(number);
        break;
      case v1::StreamRequest::kBackward:
        if (!Last("forward") || loses_graph)
          return {grpc::StatusCode::FAILED_PRECONDITION, "there is no graph"};
        reply->mutable_backward();
        break;
      default:
        reply->mutable_publish()->set_version(7);
    }
    return grpc::Status::OK;
  }

  static void AddChunk(const v1::StepRequest& request, v1::StepResponse* reply) {
    v1::Chunk& chunk = *reply->mutable_status()->add_chunks();
    chunk.set_device("cpu:0");
    chunk.set_rows(request.inputs(0).shape(0));
    chunk.add_input_shapes("[2, 1]");
    chunk.add_output_shapes("[2, 3]");
  }

  bool Last(const std::string& kind) const {
    return !history_.empty() && history_.back().description.find(kind + " ") == 0;
  }

  void SetStatus(const v1::StreamRequest& operation, bool replayed,
                 v1::StreamResponse* reply) const {
    v1::OperationStatus* status = MutableStatusOf(reply);
    status->set_applied_sequence(SequenceOf(operation));
    status->set_durable_sequence(durable_);
    status->set_step(step_);
    status->set_replayed(replayed);
  }

  std::vector<Entry> history_;
  std::vector<v1::Checkpoint> checkpoints_;
  int64_t durable_ = 0;
  int64_t step_ = 0;
  std::string last_operator_;
  int restored_ = 0;
};

}  // namespace braid::client
