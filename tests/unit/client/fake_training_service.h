// Fake training service with one FakeTrainer. Tests inject broken connections and server restarts.
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
    // Like the two above, and the server restarts: operations that are not durable are lost.
    kCrash,
    kCrashAfterwards,
    // Streams only: the operation is applied, its reply is never sent, and the stream continues.
    kWithheld,
  };

  // Applies one fault to each of the next calls.
  void Inject(std::vector<Fault> faults) {
    absl::MutexLock lock(&mu_);
    faults_ = std::move(faults);
  }
  // Rejects every call, except GetTrainer and reads, with `status` while that is not OK.
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  // While held, operations wait until they are released or their call is cancelled.
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  // Sets the pieces that GetStateDict streams. A call with a fault ends after the first piece.
  void SetState(std::vector<v1::GetStateDictResponse> pieces) {
    absl::MutexLock lock(&mu_);
    state_ = std::move(pieces);
  }
  // Sets the pieces that DownloadModel streams, with the same rule.
  void SetFile(std::vector<v1::DownloadModelResponse> pieces) {
    absl::MutexLock lock(&mu_);
    file_ = std::move(pieces);
  }
  // Runs `run` once, after the next GetTrainer has made its reply and before it sends it.
  void AtGetTrainer(std::function<void(FakeTrainer&)> run) {
    absl::MutexLock lock(&mu_);
    at_get_trainer_ = std::move(run);
  }
  // Runs `run` once, before the reply to the next GetTrainer with `settled`. Simulates operations
  // that were received earlier.
  void BeforeSettledReply(std::function<void(FakeTrainer&)> run) {
    absl::MutexLock lock(&mu_);
    before_settled_reply_ = std::move(run);
  }
  // Changes the trainer, as another client or a server restart could.
  void Edit(const std::function<void(FakeTrainer&)>& edit) {
    absl::MutexLock lock(&mu_);
    edit(trainer_);
  }
  void SetDurable(bool can_be) {
    absl::MutexLock lock(&mu_);
    can_be_durable_ = can_be;
  }

  // Returns every call received, with or without a fault, for example "step 1".
  std::vector<std::string> received() const {
    absl::MutexLock lock(&mu_);
    return received_;
  }
  // Returns every Step received.
  std::vector<v1::StepRequest> steps() const {
    absl::MutexLock lock(&mu_);
    return steps_;
  }
  // Returns FakeTrainer::history().
  std::vector<std::string> history() const {
    absl::MutexLock lock(&mu_);
    return trainer_.history();
  }
  // Blocks until the trainer has applied `count` operations.
  void AwaitHistory(int64_t count) {
    absl::MutexLock lock(&mu_);
    auto applied = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return trainer_.applied() >= count; };
    mu_.Await(absl::Condition(&applied));
  }
  // Blocks until no stream is open.
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
  // Returns the trainer's sequence number at each read of its state.
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
    if (request->settled() && before_settled_reply_) {
      std::exchange(before_settled_reply_, nullptr)(trainer_);
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

  // Reports version 3 as the version served before.
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
  std::function<void(FakeTrainer&)> before_settled_reply_ ABSL_GUARDED_BY(mu_);
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

// Fake DeviceService that reports a settable uptime, or the time since Restart.
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
  // The next reply takes so long.
  void DelayNextReply(absl::Duration delay) {
    absl::MutexLock lock(&mu_);
    delay_ = delay;
  }

  grpc::Status ListDevices(grpc::ServerContext* /*context*/,
                           const v1::ListDevicesRequest* /*request*/,
                           v1::ListDevicesResponse* reply) override {
    absl::MutexLock lock(&mu_);
    reply->set_uptime_seconds(started_ ? absl::ToDoubleSeconds(absl::Now() - *started_) : seconds_);
    absl::SleepFor(std::exchange(delay_, absl::ZeroDuration()));
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mu_;
  double seconds_ ABSL_GUARDED_BY(mu_) = 1e6;
  std::optional<absl::Time> started_ ABSL_GUARDED_BY(mu_);
  absl::Duration delay_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid::client
