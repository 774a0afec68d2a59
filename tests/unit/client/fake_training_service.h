// A trainer with the sequence rules of braid/v1/training.proto and no model, in this process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "braid/v1/training.grpc.pb.h"

namespace braid::client {

// Thread-safe. The trainer's name is "t", its model "toy".
class FakeTrainingService final : public v1::TrainingService::Service {
 public:
  enum class Fault {
    kNone,
    // The call never reaches the trainer.
    kLostRequest,
    // The call is applied, and its reply never reaches the client.
    kLostReply,
  };

  // The next calls suffer these faults, one each; later calls none.
  void Inject(std::vector<Fault> faults) {
    absl::MutexLock lock(&mu_);
    faults_ = std::move(faults);
  }
  // Every call but GetTrainer and GetStateDict is refused with this status while it is not OK.
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  // What GetStateDict streams; a call that suffers a fault ends after the first piece.
  void SetState(std::vector<v1::GetStateDictResponse> pieces) {
    absl::MutexLock lock(&mu_);
    state_ = std::move(pieces);
  }

  // "step 1" for every call that arrived, met by a fault or not.
  std::vector<std::string> received() const {
    absl::MutexLock lock(&mu_);
    return received_;
  }
  // Every Step that arrived.
  std::vector<v1::StepRequest> steps() const {
    absl::MutexLock lock(&mu_);
    return steps_;
  }

  grpc::Status CreateTrainer(grpc::ServerContext* /*context*/,
                             const v1::CreateTrainerRequest* request,
                             v1::CreateTrainerResponse* reply) override {
    absl::MutexLock lock(&mu_);
    Fault fault = Fault::kNone;
    if (auto status = Arrive("create " + request->request_id(), &fault); !status.ok()) {
      return status;
    }
    if (exists_ && created_by_ != request->request_id()) {
      return {grpc::StatusCode::ALREADY_EXISTS, "the name is taken"};
    }
    exists_ = true;
    created_by_ = request->request_id();
    *reply->mutable_trainer() = Describe();
    return Depart(fault);
  }

  grpc::Status GetTrainer(grpc::ServerContext* /*context*/, const v1::GetTrainerRequest* request,
                          v1::GetTrainerResponse* reply) override {
    absl::MutexLock lock(&mu_);
    if (!exists_ || request->name() != "t") return {grpc::StatusCode::NOT_FOUND, "no such trainer"};
    *reply->mutable_trainer() = Describe();
    return grpc::Status::OK;
  }

  grpc::Status DeleteTrainer(grpc::ServerContext* /*context*/,
                             const v1::DeleteTrainerRequest* request,
                             v1::DeleteTrainerResponse* /*reply*/) override {
    absl::MutexLock lock(&mu_);
    Fault fault = Fault::kNone;
    if (auto status = Arrive("delete " + request->name(), &fault); !status.ok()) return status;
    if (!exists_) return {grpc::StatusCode::NOT_FOUND, "no such trainer"};
    exists_ = false;
    return Depart(fault);
  }

  grpc::Status Step(grpc::ServerContext* /*context*/, const v1::StepRequest* request,
                    v1::StepResponse* reply) override {
    absl::MutexLock lock(&mu_);
    steps_.push_back(*request);
    reply->set_loss(0.5);
    return Apply("step", *request, reply->mutable_status());
  }

  grpc::Status ForwardBackward(grpc::ServerContext* /*context*/,
                               const v1::ForwardBackwardRequest* request,
                               v1::ForwardBackwardResponse* reply) override {
    absl::MutexLock lock(&mu_);
    reply->set_loss(0.25);
    return Apply("forward_backward", *request, reply->mutable_status());
  }

  grpc::Status OptimStep(grpc::ServerContext* /*context*/, const v1::OptimStepRequest* request,
                         v1::OptimStepResponse* reply) override {
    absl::MutexLock lock(&mu_);
    return Apply("optim_step", *request, reply->mutable_status());
  }

  // The outputs are the inputs; there is a loss only with targets.
  grpc::Status Forward(grpc::ServerContext* /*context*/, const v1::ForwardRequest* request,
                       v1::ForwardResponse* reply) override {
    absl::MutexLock lock(&mu_);
    *reply->mutable_outputs() = request->inputs();
    if (request->targets_size() > 0) reply->set_loss(0.125);
    return Apply("forward", *request, reply->mutable_status());
  }

  grpc::Status Publish(grpc::ServerContext* /*context*/, const v1::PublishRequest* request,
                       v1::PublishResponse* reply) override {
    absl::MutexLock lock(&mu_);
    reply->set_version(7);
    return Apply("publish", *request, reply->mutable_status());
  }

  grpc::Status GetStateDict(grpc::ServerContext* /*context*/,
                            const v1::GetStateDictRequest* /*request*/,
                            grpc::ServerWriter<v1::GetStateDictResponse>* writer) override {
    absl::MutexLock lock(&mu_);
    const Fault fault = TakeFault();
    for (const v1::GetStateDictResponse& piece : state_) {
      writer->Write(piece);
      if (fault != Fault::kNone) return Lost();
    }
    return grpc::Status::OK;
  }

 private:
  template <typename Request>
  grpc::Status Apply(const char* operation, const Request& request, v1::OperationStatus* status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Fault fault = Fault::kNone;
    grpc::Status refused = Arrive(absl::StrCat(operation, " ", request.sequence()), &fault);
    if (!refused.ok()) return refused;
    const bool replayed = request.sequence() == applied_;
    if (replayed && request.SerializeAsString() != last_) {
      return {grpc::StatusCode::ABORTED, "another request of this number"};
    }
    if (!replayed && request.sequence() != applied_ + 1) {
      return {grpc::StatusCode::FAILED_PRECONDITION, absl::StrCat("expected ", applied_ + 1)};
    }
    applied_ = request.sequence();
    last_ = request.SerializeAsString();
    status->set_applied_sequence(applied_);
    status->set_replayed(replayed);
    return Depart(fault);
  }

  grpc::Status Arrive(std::string call, Fault* fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    received_.push_back(std::move(call));
    *fault = TakeFault();
    return *fault == Fault::kLostRequest ? Lost() : refusal_;
  }
  static grpc::Status Depart(Fault fault) {
    return fault == Fault::kLostReply ? Lost() : grpc::Status::OK;
  }
  static grpc::Status Lost() { return {grpc::StatusCode::UNAVAILABLE, "connection lost"}; }

  Fault TakeFault() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (faults_.empty()) return Fault::kNone;
    const Fault fault = faults_.front();
    faults_.erase(faults_.begin());
    return fault;
  }

  v1::Trainer Describe() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::Trainer trainer;
    trainer.set_name("t");
    trainer.set_model("toy");
    trainer.set_applied_sequence(applied_);
    return trainer;
  }

  mutable absl::Mutex mu_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::GetStateDictResponse> state_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> received_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::StepRequest> steps_ ABSL_GUARDED_BY(mu_);
  bool exists_ ABSL_GUARDED_BY(mu_) = false;
  std::string created_by_ ABSL_GUARDED_BY(mu_);
  int64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid::client
