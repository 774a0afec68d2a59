#include "server/rpc/training_service.h"

#include <memory>
#include <utility>

#include "server/base/status.h"
#include "server/rpc/state_writer.h"
#include "server/rpc/tensor_codec.h"
#include "server/rpc/training_messages.h"

namespace braid {
namespace {

using Call = std::shared_ptr<UnaryCall>;

}  // namespace

template <typename Request, typename Fill>
TrainingService::Reactor* TrainingService::Operate(Context* context, absl::string_view method,
                                                   const Request* request, Fill fill) {
  return AnswerLater(rpc_, context, method, request->ByteSizeLong(),
                     [&](const Call& call) -> absl::Status {
                       BRAID_ASSIGN_OR_RETURN(Operation operation, ReadOperation(*request));
                       trainers_->Submit(request->trainer(), std::move(operation),
                                         [call, fill](absl::StatusOr<OperationResult> result) {
                                           if (result.ok()) {
                                             fill(*result);
                                           }
                                           call->Finish(result.status());
                                         });
                       return absl::OkStatus();
                     });
}

TrainingService::Reactor* TrainingService::CreateTrainer(
    Context* context, const braid::v1::CreateTrainerRequest* request,
    braid::v1::CreateTrainerResponse* response) {
  return AnswerLater(rpc_, context, "CreateTrainer", request->ByteSizeLong(),
                     [&](const Call& call) -> absl::Status {
                       BRAID_ASSIGN_OR_RETURN(TrainerSpec spec, ReadSpec(*request));
                       trainers_->Create(std::move(spec),
                                         [call, response](absl::StatusOr<TrainerInfo> info) {
                                           if (info.ok()) {
                                             WriteTrainer(*info, response->mutable_trainer());
                                           }
                                           call->Finish(info.status());
                                         });
                       return absl::OkStatus();
                     });
}

TrainingService::Reactor* TrainingService::GetTrainer(Context* context,
                                                      const braid::v1::GetTrainerRequest* request,
                                                      braid::v1::GetTrainerResponse* response) {
  return Answer(rpc_, context, "GetTrainer", [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const TrainerInfo info, trainers_->Get(request->name()));
    WriteTrainer(info, response->mutable_trainer());
    return absl::OkStatus();
  });
}

TrainingService::Reactor* TrainingService::ListTrainers(Context* context,
                                                        const braid::v1::ListTrainersRequest*,
                                                        braid::v1::ListTrainersResponse* response) {
  return Answer(rpc_, context, "ListTrainers", [&] {
    for (const TrainerInfo& info : trainers_->List()) {
      WriteTrainer(info, response->add_trainers());
    }
    return absl::OkStatus();
  });
}

TrainingService::Reactor* TrainingService::DeleteTrainer(
    Context* context, const braid::v1::DeleteTrainerRequest* request,
    braid::v1::DeleteTrainerResponse*) {
  return AnswerLater(
      rpc_, context, "DeleteTrainer", request->ByteSizeLong(), [&](const Call& call) {
        trainers_->Delete(request->name(),
                          [call](const absl::Status& status) { call->Finish(status); });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::Step(Context* context,
                                                const braid::v1::StepRequest* request,
                                                braid::v1::StepResponse* response) {
  return Operate(context, "Step", request, [request, response](const OperationResult& result) {
    WriteStatus(result, request->report_split(), response->mutable_status());
    response->set_loss(*result.loss);
  });
}

TrainingService::Reactor* TrainingService::ForwardBackward(
    Context* context, const braid::v1::ForwardBackwardRequest* request,
    braid::v1::ForwardBackwardResponse* response) {
  return Operate(context, "ForwardBackward", request,
                 [request, response](const OperationResult& result) {
                   WriteStatus(result, request->report_split(), response->mutable_status());
                   response->set_loss(*result.loss);
                 });
}

TrainingService::Reactor* TrainingService::OptimStep(Context* context,
                                                     const braid::v1::OptimStepRequest* request,
                                                     braid::v1::OptimStepResponse* response) {
  return Operate(context, "OptimStep", request, [response](const OperationResult& result) {
    WriteStatus(result, /*with_chunks=*/false, response->mutable_status());
  });
}

TrainingService::Reactor* TrainingService::Forward(Context* context,
                                                   const braid::v1::ForwardRequest* request,
                                                   braid::v1::ForwardResponse* response) {
  return Operate(context, "Forward", request, [request, response](const OperationResult& result) {
    WriteStatus(result, request->report_split(), response->mutable_status());
    for (const HostTensor& output : result.outputs) {
      WriteTensor(output, response->add_outputs());
    }
    if (result.loss) {
      response->set_loss(*result.loss);
    }
  });
}

TrainingService::Reactor* TrainingService::Publish(Context* context,
                                                   const braid::v1::PublishRequest* request,
                                                   braid::v1::PublishResponse* response) {
  return Operate(context, "Publish", request, [response](const OperationResult& result) {
    WriteStatus(result, /*with_chunks=*/false, response->mutable_status());
    response->set_model(result.model);
    response->set_version(result.version);
  });
}

grpc::ServerWriteReactor<braid::v1::GetStateDictResponse>* TrainingService::GetStateDict(
    Context*, const braid::v1::GetStateDictRequest* request) {
  auto* writer = new StateWriter(rpc_);  // deletes itself
  trainers_->GetState(request->trainer(), [writer](absl::StatusOr<std::vector<StateTensor>> state) {
    writer->Start(std::move(state));
  });
  return writer;
}

}  // namespace braid
