// A service with one trainer that has the sequence rules of braid/v1/training.proto and no model,
// in this process, whose connections break and whose server restarts as it is told.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "braid/v1/training.grpc.pb.h"
#include "tests/unit/client/fake_trainer.h"

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
    // As these two, and the server is started again: what is not durable is lost.
    kCrash,
    kCrashAfterwards,
    // Of a stream: the operation is applied, its reply never sent, and the stream goes on.
    kWithheld,
  };

  // The next calls suffer these faults, one each; later calls none.
  void Inject(std::vector<Fault> faults) {
    absl::MutexLock lock(&mu_);
    faults_ = std::move(faults);
  }
  // Every call but GetTrainer and those that read is refused with this status while it is not OK.
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  // Operations wait while this is so, until they are released or their call is cancelled.
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  // What GetStateDict streams; a call that suffers a fault ends after the first piece.
  void SetState(std::vector<v1::GetStateDictResponse> pieces) {
    absl::MutexLock lock(&mu_);
    state_ = std::move(pieces);
  }
  // Likewise DownloadModel.
  void SetFile(std::vector<v1::DownloadModelResponse> pieces) {
    absl::MutexLock lock(&mu_);
    file_ = std::move(pieces);
  }
  // Runs, once, when the next GetTrainer has its reply but not yet sent it.
  void AtGetTrainer(std::function<void(FakeTrainer&)> run) {
    absl::MutexLock lock(&mu_);
    at_get_trainer_ = std::move(run);
  }
  // Runs, once, before the next GetTrainer that is to be settled is answered: what was received
  // before it.
  void BeforeItIsSettled(std::function<void(FakeTrainer&)> run) {
    absl::MutexLock lock(&mu_);
    before_it_is_settled_ = std::move(run);
  }
  // What `edit` does to the trainer, another client might have done, or a server's restart.
  void Edit(const std::function<void(FakeTrainer&)>& edit) {
    absl::MutexLock lock(&mu_);
    edit(trainer_);
  }
  void SetDurable(bool can_be) {
    absl::MutexLock lock(&mu_);
    can_be_durable_ = can_be;
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
  // What the trainer has applied, and not lost: FakeTrainer::history.
  std::vector<std::string> history() const {
    absl::MutexLock lock(&mu_);
    return trainer_.history();
  }
  // Until the trainer has applied so many.
  void AwaitHistory(int64_t count) {
    absl::MutexLock lock(&mu_);
    auto applied = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return trainer_.applied() >= count; };
    mu_.Await(absl::Condition(&applied));
  }
  // Until no stream is being served.
  void AwaitStreamsOver() {
    absl::MutexLock lock(&mu_);
    auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return serving_ == 0; };
    mu_.Await(absl::Condition(&over));
  }
  std::vector<v1::EvaluateRequest> evaluated() const {
    absl::MutexLock lock(&mu_);
    return evaluated_;
  }
  int streams() const {
    absl::MutexLock lock(&mu_);
    return streams_;
  }
  // For each call that read the trainer's state, the number at which it stood.
  std::vector<int64_t> reads() const {
    absl::MutexLock lock(&mu_);
    return reads_;
  }
  int saved() const {
    absl::MutexLock lock(&mu_);
    return saved_;
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
    trainer_.options = request->options();
    *reply->mutable_trainer() = trainer_.Info();
    return Depart(fault);
  }

  grpc::Status GetTrainer(grpc::ServerContext* /*context*/, const v1::GetTrainerRequest* request,
                          v1::GetTrainerResponse* reply) override {
    absl::MutexLock lock(&mu_);
    if (!exists_ || request->name() != "t") return {grpc::StatusCode::NOT_FOUND, "no such trainer"};
    if (request->settled() && before_it_is_settled_) {
      std::exchange(before_it_is_settled_, nullptr)(trainer_);
    }
    *reply->mutable_trainer() = trainer_.Info();
    if (at_get_trainer_) std::exchange(at_get_trainer_, nullptr)(trainer_);
    return grpc::Status::OK;
  }

  grpc::Status ListTrainers(grpc::ServerContext* /*context*/,
                            const v1::ListTrainersRequest* /*request*/,
                            v1::ListTrainersResponse* reply) override {
    absl::MutexLock lock(&mu_);
    if (exists_) *reply->add_trainers() = trainer_.Info();
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

  grpc::Status Step(grpc::ServerContext* context, const v1::StepRequest* request,
                    v1::StepResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_step() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::step, reply);
  }
  grpc::Status ForwardBackward(grpc::ServerContext* context,
                               const v1::ForwardBackwardRequest* request,
                               v1::ForwardBackwardResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_forward_backward() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::forward_backward, reply);
  }
  grpc::Status OptimStep(grpc::ServerContext* context, const v1::OptimStepRequest* request,
                         v1::OptimStepResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_optim_step() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::optim_step, reply);
  }
  grpc::Status Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                       v1::ForwardResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_forward() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::forward, reply);
  }
  grpc::Status Backward(grpc::ServerContext* context, const v1::BackwardRequest* request,
                        v1::BackwardResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_backward() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::backward, reply);
  }
  grpc::Status Publish(grpc::ServerContext* context, const v1::PublishRequest* request,
                       v1::PublishResponse* reply) override {
    v1::StreamRequest operation;
    *operation.mutable_publish() = *request;
    return ApplyAlone(context, operation, &v1::StreamResponse::publish, reply);
  }

  grpc::Status Stream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) override {
    {
      absl::MutexLock lock(&mu_);
      ++streams_;
      ++serving_;
    }
    v1::StreamRequest operation;
    grpc::Status status;
    while (status.ok() && stream->Read(&operation)) {
      v1::StreamResponse reply;
      bool withheld = false;
      status = Apply(context, operation, &reply, &withheld);
      if (status.ok() && !withheld) stream->Write(reply);
    }
    absl::MutexLock lock(&mu_);
    --serving_;
    return status;
  }

  grpc::Status Evaluate(grpc::ServerContext* /*context*/,
                        grpc::ServerReader<v1::EvaluateRequest>* reader,
                        v1::EvaluateResponse* reply) override {
    v1::EvaluateRequest request;
    {
      absl::MutexLock lock(&mu_);
      reads_.push_back(trainer_.applied());
    }
    while (reader->Read(&request)) {
      absl::MutexLock lock(&mu_);
      if (!refusal_.ok()) return refusal_;
      evaluated_.push_back(request);
      reply->set_rows(reply->rows() + request.inputs(0).shape(0));
    }
    reply->set_loss(0.75);
    return grpc::Status::OK;
  }

  grpc::Status SaveCheckpoint(grpc::ServerContext* /*context*/,
                              const v1::SaveCheckpointRequest* /*request*/,
                              v1::SaveCheckpointResponse* reply) override {
    absl::MutexLock lock(&mu_);
    ++saved_;
    reads_.push_back(trainer_.applied());
    if (!can_be_durable_) return {grpc::StatusCode::FAILED_PRECONDITION, "no data directory"};
    *reply->mutable_checkpoint() = trainer_.Checkpoint();
    return grpc::Status::OK;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext* /*context*/,
                               const v1::ListCheckpointsRequest* /*request*/,
                               v1::ListCheckpointsResponse* reply) override {
    absl::MutexLock lock(&mu_);
    for (const v1::Checkpoint& checkpoint : trainer_.checkpoints()) {
      *reply->add_checkpoints() = checkpoint;
    }
    return grpc::Status::OK;
  }
  grpc::Status RestoreCheckpoint(grpc::ServerContext* /*context*/,
                                 const v1::RestoreCheckpointRequest* request,
                                 v1::RestoreCheckpointResponse* reply) override {
    absl::MutexLock lock(&mu_);
    if (request->trainer() != "t") return {grpc::StatusCode::NOT_FOUND, "no such trainer"};
    const std::vector<v1::Checkpoint> checkpoints = trainer_.checkpoints();
    for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
      const v1::Checkpoint& checkpoint = *it;
      const std::string& wanted = request->checkpoint();
      if (!wanted.empty() && checkpoint.name() != wanted) continue;
      trainer_.Restore(checkpoint.sequence());
      *reply->mutable_checkpoint() = checkpoint;
      *reply->mutable_trainer() = trainer_.Info();
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::NOT_FOUND, "no such checkpoint"};
  }

  // 3 is served, whatever is asked for.
  grpc::Status Rollback(grpc::ServerContext* /*context*/, const v1::RollbackRequest* request,
                        v1::RollbackResponse* reply) override {
    absl::MutexLock lock(&mu_);
    received_.push_back(absl::StrCat("rollback ", request->model(), " ", request->version()));
    reply->set_previous_version(3);
    return grpc::Status::OK;
  }

  grpc::Status GetStateDict(grpc::ServerContext* /*context*/,
                            const v1::GetStateDictRequest* /*request*/,
                            grpc::ServerWriter<v1::GetStateDictResponse>* writer) override {
    absl::MutexLock lock(&mu_);
    reads_.push_back(trainer_.applied());
    return WritePieces(state_, *writer);
  }
  grpc::Status DownloadModel(grpc::ServerContext* /*context*/,
                             const v1::DownloadModelRequest* request,
                             grpc::ServerWriter<v1::DownloadModelResponse>* writer) override {
    absl::MutexLock lock(&mu_);
    received_.push_back(absl::StrCat("download ", request->format()));
    reads_.push_back(trainer_.applied());
    return WritePieces(file_, *writer);
  }

 private:
  template <typename Reply>
  grpc::Status ApplyAlone(grpc::ServerContext* context, const v1::StreamRequest& operation,
                          const Reply& (v1::StreamResponse::*field)() const, Reply* reply) {
    v1::StreamResponse applied;
    bool withheld = false;
    grpc::Status status = Apply(context, operation, &applied, &withheld);
    *reply = (applied.*field)();
    return status;
  }

  grpc::Status Apply(grpc::ServerContext* context, const v1::StreamRequest& operation,
                     v1::StreamResponse* reply, bool* withheld) {
    absl::MutexLock lock(&mu_);
    if (operation.has_step()) steps_.push_back(operation.step());
    auto go_on = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !held_ || context->IsCancelled(); };
    while (!mu_.AwaitWithTimeout(absl::Condition(&go_on), absl::Milliseconds(5))) {
    }
    if (held_) return grpc::Status::CANCELLED;
    Fault fault = Fault::kNone;
    const std::string description = FakeTrainer::Describe(operation);
    grpc::Status refused = Arrive(description.substr(0, description.find(" of ")), &fault);
    if (!refused.ok()) return refused;
    if (auto status = trainer_.Apply(operation, reply); !status.ok()) return status;
    *withheld = fault == Fault::kWithheld;
    return Depart(fault);
  }

  grpc::Status Arrive(std::string call, Fault* fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    received_.push_back(std::move(call));
    *fault = TakeFault();
    if (*fault == Fault::kCrash) trainer_.Restart();
    const bool lost = *fault == Fault::kLostRequest || *fault == Fault::kCrash;
    return lost ? Lost() : refusal_;
  }
  grpc::Status Depart(Fault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (fault == Fault::kCrashAfterwards) trainer_.Restart();
    const bool lost = fault == Fault::kLostReply || fault == Fault::kCrashAfterwards;
    return lost ? Lost() : grpc::Status::OK;
  }
  static grpc::Status Lost() { return {grpc::StatusCode::UNAVAILABLE, "connection lost"}; }

  template <typename Piece>
  grpc::Status WritePieces(const std::vector<Piece>& pieces, grpc::ServerWriter<Piece>& writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Fault fault = TakeFault();
    for (const Piece& piece : pieces) {
      writer.Write(piece);
      if (fault != Fault::kNone) return Lost();
    }
    return grpc::Status::OK;
  }

  Fault TakeFault() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (faults_.empty()) return Fault::kNone;
    const Fault fault = faults_.front();
    faults_.erase(faults_.begin());
    return fault;
  }

  mutable absl::Mutex mu_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  bool can_be_durable_ ABSL_GUARDED_BY(mu_) = true;
  std::vector<v1::GetStateDictResponse> state_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::DownloadModelResponse> file_ ABSL_GUARDED_BY(mu_);
  std::function<void(FakeTrainer&)> at_get_trainer_ ABSL_GUARDED_BY(mu_);
  std::function<void(FakeTrainer&)> before_it_is_settled_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> received_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::StepRequest> steps_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::EvaluateRequest> evaluated_ ABSL_GUARDED_BY(mu_);
  int streams_ ABSL_GUARDED_BY(mu_) = 0;
  int serving_ ABSL_GUARDED_BY(mu_) = 0;
  int saved_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> reads_ ABSL_GUARDED_BY(mu_);
  bool exists_ ABSL_GUARDED_BY(mu_) = false;
  std::string created_by_ ABSL_GUARDED_BY(mu_);
  FakeTrainer trainer_ ABSL_GUARDED_BY(mu_);
};

// A server that has been up for as long as it says, or since it was started again.
class FakeUptime final : public v1::DeviceService::Service {
 public:
  void SetSeconds(double seconds) {
    absl::MutexLock lock(&mu_);
    seconds_ = seconds;
  }
  void Restart() {
    absl::MutexLock lock(&mu_);
    started_ = absl::Now();
  }

  grpc::Status ListDevices(grpc::ServerContext* /*context*/,
                           const v1::ListDevicesRequest* /*request*/,
                           v1::ListDevicesResponse* reply) override {
    absl::MutexLock lock(&mu_);
    reply->set_uptime_seconds(started_ ? absl::ToDoubleSeconds(absl::Now() - *started_) : seconds_);
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mu_;
  double seconds_ ABSL_GUARDED_BY(mu_) = 1e6;
  std::optional<absl::Time> started_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid::client
