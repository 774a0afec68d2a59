// braid.v1.TrainingService: trainers, and the operations on them.
#pragma once

#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// Thread-safe. No method blocks; a thread of the trainer pool sends the reply of an operation.
class TrainingService final : public braid::v1::TrainingService::CallbackService {
 public:
  // All pointers outlive the service.
  TrainingService(TrainerRegistry* trainers, const RpcContext& rpc)
      : trainers_(trainers), rpc_(rpc) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* CreateTrainer(Context* context, const braid::v1::CreateTrainerRequest* request,
                         braid::v1::CreateTrainerResponse* response) override;
  Reactor* GetTrainer(Context* context, const braid::v1::GetTrainerRequest* request,
                      braid::v1::GetTrainerResponse* response) override;
  Reactor* ListTrainers(Context* context, const braid::v1::ListTrainersRequest* request,
                        braid::v1::ListTrainersResponse* response) override;
  Reactor* DeleteTrainer(Context* context, const braid::v1::DeleteTrainerRequest* request,
                         braid::v1::DeleteTrainerResponse* response) override;
  Reactor* Step(Context* context, const braid::v1::StepRequest* request,
                braid::v1::StepResponse* response) override;
  Reactor* ForwardBackward(Context* context, const braid::v1::ForwardBackwardRequest* request,
                           braid::v1::ForwardBackwardResponse* response) override;
  Reactor* OptimStep(Context* context, const braid::v1::OptimStepRequest* request,
                     braid::v1::OptimStepResponse* response) override;
  Reactor* Forward(Context* context, const braid::v1::ForwardRequest* request,
                   braid::v1::ForwardResponse* response) override;
  Reactor* Backward(Context* context, const braid::v1::BackwardRequest* request,
                    braid::v1::BackwardResponse* response) override;
  grpc::ServerBidiReactor<braid::v1::StreamRequest, braid::v1::StreamResponse>* Stream(
      Context* context) override;
  grpc::ServerReadReactor<braid::v1::EvaluateRequest>* Evaluate(
      Context* context, braid::v1::EvaluateResponse* response) override;
  Reactor* SaveCheckpoint(Context* context, const braid::v1::SaveCheckpointRequest* request,
                          braid::v1::SaveCheckpointResponse* response) override;
  Reactor* RestoreCheckpoint(Context* context, const braid::v1::RestoreCheckpointRequest* request,
                             braid::v1::RestoreCheckpointResponse* response) override;
  Reactor* ListCheckpoints(Context* context, const braid::v1::ListCheckpointsRequest* request,
                           braid::v1::ListCheckpointsResponse* response) override;
  grpc::ServerWriteReactor<braid::v1::GetHistoryResponse>* GetHistory(
      Context* context, const braid::v1::GetHistoryRequest* request) override;
  Reactor* ForkTrainer(Context* context, const braid::v1::ForkTrainerRequest* request,
                       braid::v1::ForkTrainerResponse* response) override;
  Reactor* ReplayTrainer(Context* context, const braid::v1::ReplayTrainerRequest* request,
                         braid::v1::ReplayTrainerResponse* response) override;
  Reactor* Rollback(Context* context, const braid::v1::RollbackRequest* request,
                    braid::v1::RollbackResponse* response) override;
  Reactor* Publish(Context* context, const braid::v1::PublishRequest* request,
                   braid::v1::PublishResponse* response) override;
  grpc::ServerWriteReactor<braid::v1::GetStateDictResponse>* GetStateDict(
      Context* context, const braid::v1::GetStateDictRequest* request) override;
  grpc::ServerWriteReactor<braid::v1::DownloadModelResponse>* DownloadModel(
      Context* context, const braid::v1::DownloadModelRequest* request) override;

 private:
  // Submits an operation to its trainer, whose thread replies when it is applied.
  template <typename Request, typename Response>
  Reactor* Operate(Context* context, absl::string_view method, const Request* request,
                   Response* response);

  TrainerRegistry* const trainers_;
  const RpcContext rpc_;
};

}  // namespace braid
