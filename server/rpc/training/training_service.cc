#include "server/rpc/training/training_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/inference/tensor_codec.h"
#include "server/rpc/server/transport.h"
#include "server/rpc/training/evaluation_stream.h"
#include "server/rpc/training/operation_stream.h"
#include "server/rpc/training/piece_stream.h"
#include "server/rpc/training/spec_messages.h"
#include "server/rpc/training/training_messages.h"

namespace braid {
namespace {

using Call = std::shared_ptr<UnaryCall>;

absl::Status CheckNewName(const std::string& name) {
  return absl::StartsWith(name, kJobTrainerPrefix)
             ? InvalidField("name", absl::StrCat("'", Excerpt(name), "' (names that start with '",
                                                 kJobTrainerPrefix,
                                                 "' are reserved for the trainers of jobs)"))
             : absl::OkStatus();
}

absl::StatusOr<ExportFormat> FormatOf(int format) {
  switch (format) {
    case braid::v1::DownloadModelRequest::FORMAT_UNSPECIFIED:
    case braid::v1::DownloadModelRequest::FORMAT_TORCHSCRIPT:
      return ExportFormat::kTorchScript;
    case braid::v1::DownloadModelRequest::FORMAT_SAFETENSORS:
      return ExportFormat::kSafetensors;
    case braid::v1::DownloadModelRequest::FORMAT_PACKAGE:
      return ExportFormat::kPackage;
    case braid::v1::DownloadModelRequest::FORMAT_TRAINABLE_SAFETENSORS:
      return ExportFormat::kTrainableSafetensors;
    default:
      return InvalidField("format", absl::StrCat("unknown value ", format,
                                                 " (expected TORCHSCRIPT, SAFETENSORS, PACKAGE or "
                                                 "TRAINABLE_SAFETENSORS)"));
  }
}

absl::Status WriteCreated(const absl::StatusOr<CreatedTrainer>& created,
                          const TrainerSpec& requested,
                          braid::v1::CreateTrainerResponse* response) {
  BRAID_RETURN_IF_ERROR(created.status());
  if (!created->created) {
    BRAID_RETURN_IF_ERROR(CheckSameArguments(requested, created->info.spec));
  }
  WriteTrainer(created->info, response->mutable_trainer());
  response->set_created(created->created);
  return absl::OkStatus();
}

absl::Status CheckStep(absl::string_view field, int64_t step, int64_t least = 0) {
  return step >= least
             ? absl::OkStatus()
             : InvalidField(field, absl::StrCat(step, " (expected at least ", least, ")"));
}

absl::StatusOr<HistoryRange> ReadRange(const braid::v1::GetHistoryRequest& request) {
  HistoryRange range;
  BRAID_RETURN_IF_ERROR(CheckStep("first_step", request.first_step()));
  range.first_step = request.first_step();
  if (request.has_last_step()) {
    BRAID_RETURN_IF_ERROR(CheckStep("last_step", request.last_step(), request.first_step()));
    range.last_step = request.last_step();
  }
  BRAID_RETURN_IF_ERROR(CheckStep("limit", request.limit()));
  range.limit = static_cast<size_t>(request.limit());
  return range;
}

// Returns a function that returns true if the client has cancelled the call.
TrainerRegistry::Cancelled CancelledCheck(const Call& call,
                                          const grpc::CallbackServerContext* context) {
  return [call, context] { return context->IsCancelled(); };
}

// Records details for the access log.
void RecordFacts(const OperationResult& result, CallFacts* facts) {
  if (!AccessLogOn()) {
    return;
  }
  facts->chunks = static_cast<int64_t>(result.chunks.size());
  for (const TrainingChunk& chunk : result.chunks) {
    facts->rows += chunk.rows;
  }
  for (const PhaseTime& phase : result.phases) {
    facts->phases.emplace_back(phase.name, phase.time);
  }
}

}  // namespace

template <typename Request, typename Response>
TrainingService::Reactor* TrainingService::Operate(Context* context, absl::string_view method,
                                                   const Request* request, Response* response) {
  bool with_chunks = false;
  if constexpr (requires { request->report_split(); }) {
    with_chunks = request->report_split();
  }
  return HandleUnaryAsync(rpc_, context, method, *request, [&](const Call& call) -> absl::Status {
    BRAID_RETURN_IF_ERROR(CheckNotOwnedByJob(request->trainer()));
    BRAID_ASSIGN_OR_RETURN(Operation operation, ReadOperation(*request));
    trainers_->Submit(request->trainer(), std::move(operation),
                      [call, response, with_chunks](absl::StatusOr<OperationResult> result) {
                        absl::Status status = result.status();
                        if (result.ok()) {
                          RecordFacts(*result, &call->facts());
                          WriteReply(*result, with_chunks, response);
                          status = CheckReplySize(response);
                          if constexpr (requires { response->version(); }) {
                            call->RecordAudit("version", response->version());
                          }
                        }
                        call->Reply(status);
                      });
    return absl::OkStatus();
  });
}

TrainingService::Reactor* TrainingService::CreateTrainer(
    Context* context, const braid::v1::CreateTrainerRequest* request,
    braid::v1::CreateTrainerResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "CreateTrainer", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckNewName(request->name()));
        absl::StatusOr<TrainerSpec> spec = ReadSpec(*request);
        if (!spec.ok()) {
          return QualifyField(spec.status());
        }
        TrainerSpec requested = *spec;
        trainers_->Create(*std::move(spec), request->SerializeAsString(),
                          [call, response, requested = std::move(requested)](
                              const absl::StatusOr<CreatedTrainer>& created) {
                            call->Reply(QualifyField(WriteCreated(created, requested, response)));
                          });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::GetTrainer(Context* context,
                                                      const braid::v1::GetTrainerRequest* request,
                                                      braid::v1::GetTrainerResponse* response) {
  return HandleUnaryAsync(rpc_, context, "GetTrainer", *request, [&](const Call& call) {
    const auto reply = [call, response](const absl::StatusOr<TrainerInfo>& info) {
      if (info.ok()) {
        WriteTrainer(*info, response->mutable_trainer());
      }
      call->Reply(info.status());
    };
    if (request->settled()) {
      trainers_->GetSettled(request->name(), reply);
    } else {
      trainers_->Get(request->name(), reply);
    }
    return absl::OkStatus();
  });
}

TrainingService::Reactor* TrainingService::ListTrainers(
    Context* context, const braid::v1::ListTrainersRequest* request,
    braid::v1::ListTrainersResponse* response) {
  return HandleUnary(rpc_, context, "ListTrainers", *request,
                     [&](const Caller& caller) -> absl::Status {
                       BRAID_RETURN_IF_ERROR(rpc_.admission->CheckOpen());
                       for (const TrainerInfo& info : trainers_->List()) {
                         if (caller.May(Role::kTrain, info.spec.model)) {
                           WriteTrainer(info, response->add_trainers());
                         }
                       }
                       return absl::OkStatus();
                     });
}

TrainingService::Reactor* TrainingService::DeleteTrainer(
    Context* context, const braid::v1::DeleteTrainerRequest* request,
    braid::v1::DeleteTrainerResponse*) {
  return HandleUnaryAsync(
      rpc_, context, "DeleteTrainer", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckNotOwnedByJob(request->name()));
        trainers_->Delete(request->name(),
                          [call](const absl::Status& status) { call->Reply(status); });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::Step(Context* context,
                                                const braid::v1::StepRequest* request,
                                                braid::v1::StepResponse* response) {
  return Operate(context, "Step", request, response);
}

TrainingService::Reactor* TrainingService::ForwardBackward(
    Context* context, const braid::v1::ForwardBackwardRequest* request,
    braid::v1::ForwardBackwardResponse* response) {
  return Operate(context, "ForwardBackward", request, response);
}

TrainingService::Reactor* TrainingService::OptimStep(Context* context,
                                                     const braid::v1::OptimStepRequest* request,
                                                     braid::v1::OptimStepResponse* response) {
  return Operate(context, "OptimStep", request, response);
}

TrainingService::Reactor* TrainingService::Forward(Context* context,
                                                   const braid::v1::ForwardRequest* request,
                                                   braid::v1::ForwardResponse* response) {
  return Operate(context, "Forward", request, response);
}

TrainingService::Reactor* TrainingService::Backward(Context* context,
                                                    const braid::v1::BackwardRequest* request,
                                                    braid::v1::BackwardResponse* response) {
  return Operate(context, "Backward", request, response);
}

TrainingService::Reactor* TrainingService::Publish(Context* context,
                                                   const braid::v1::PublishRequest* request,
                                                   braid::v1::PublishResponse* response) {
  return Operate(context, "Publish", request, response);
}

grpc::ServerBidiReactor<braid::v1::StreamRequest, braid::v1::StreamResponse>*
TrainingService::Stream(Context* context) {
  return new OperationStream(trainers_, rpc_, *context);  // deletes itself
}

grpc::ServerReadReactor<braid::v1::EvaluateRequest>* TrainingService::Evaluate(
    Context* context, braid::v1::EvaluateResponse* response) {
  return new EvaluationStream(trainers_, rpc_, *context, response);  // deletes itself
}

TrainingService::Reactor* TrainingService::SaveCheckpoint(
    Context* context, const braid::v1::SaveCheckpointRequest* request,
    braid::v1::SaveCheckpointResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "SaveCheckpoint", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckNotOwnedByJob(request->trainer()));
        trainers_->SaveCheckpoint(request->trainer(),
                                  [call, response](const absl::StatusOr<CheckpointInfo>& info) {
                                    if (info.ok()) {
                                      WriteCheckpoint(*info, response->mutable_checkpoint());
                                      call->RecordAudit("checkpoint", info->name);
                                    }
                                    call->Reply(info.status());
                                  });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::RestoreCheckpoint(
    Context* context, const braid::v1::RestoreCheckpointRequest* request,
    braid::v1::RestoreCheckpointResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "RestoreCheckpoint", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckNotOwnedByJob(request->trainer()));
        const auto reply = [this, call, request,
                            response](const absl::StatusOr<CheckpointInfo>& info) {
          if (!info.ok()) {
            call->Reply(info.status());
            return;
          }
          WriteCheckpoint(*info, response->mutable_checkpoint());
          call->RecordAudit("checkpoint", info->name);
          trainers_->Get(request->trainer(),
                         [call, response](const absl::StatusOr<TrainerInfo>& trainer) {
                           if (trainer.ok()) {
                             WriteTrainer(*trainer, response->mutable_trainer());
                           }
                           call->Reply(trainer.status());
                         });
        };
        if (!request->has_step()) {
          trainers_->RestoreCheckpoint(request->trainer(), request->checkpoint(), reply);
          return absl::OkStatus();
        }
        if (!request->checkpoint().empty()) {
          return InvalidField("step", "set together with checkpoint (set one of them)");
        }
        BRAID_RETURN_IF_ERROR(CheckStep("step", request->step()));
        trainers_->RestoreStep(request->trainer(), request->step(), CancelledCheck(call, context),
                               reply);
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<braid::v1::GetHistoryResponse>* TrainingService::GetHistory(
    Context* context, const braid::v1::GetHistoryRequest* request) {
  auto* writer =
      new PieceStream<HistoryPieces>(rpc_, *context, "GetHistory", *request);  // deletes itself
  const absl::StatusOr<HistoryRange> range =
      writer->error().ok() ? ReadRange(*request) : writer->error();
  if (!range.ok()) {
    writer->Start(range.status());
    return writer;
  }
  trainers_->GetHistory(request->trainer(), *range,
                        [writer](absl::StatusOr<std::vector<RecordedOperation>> history) {
                          writer->Start(std::move(history));
                        });
  return writer;
}

TrainingService::Reactor* TrainingService::ForkTrainer(Context* context,
                                                       const braid::v1::ForkTrainerRequest* request,
                                                       braid::v1::ForkTrainerResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "ForkTrainer", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckNotOwnedByJob(request->trainer()));
        BRAID_RETURN_IF_ERROR(PrefixField("new_", CheckNewName(request->new_name())));
        if (request->has_step()) {
          BRAID_RETURN_IF_ERROR(CheckStep("step", request->step()));
        }
        trainers_->Fork(request->trainer(),
                        request->has_step() ? std::optional(request->step()) : std::nullopt,
                        request->new_name(), CancelledCheck(call, context),
                        [call, response](const absl::StatusOr<TrainerInfo>& info) {
                          if (info.ok()) {
                            WriteTrainer(*info, response->mutable_trainer());
                          }
                          call->Reply(info.status());
                        });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::ReplayTrainer(
    Context* context, const braid::v1::ReplayTrainerRequest* request,
    braid::v1::ReplayTrainerResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "ReplayTrainer", *request, [&](const Call& call) -> absl::Status {
        ReplayRange range;
        if (request->has_first_step()) {
          BRAID_RETURN_IF_ERROR(CheckStep("first_step", request->first_step(), 1));
          range.first_step = request->first_step();
        }
        if (request->has_last_step()) {
          BRAID_RETURN_IF_ERROR(
              CheckStep("last_step", request->last_step(), range.first_step.value_or(1)));
          range.last_step = request->last_step();
        }
        trainers_->Replay(request->trainer(), range, CancelledCheck(call, context),
                          [call, response](const absl::StatusOr<ReplayReport>& report) {
                            if (report.ok()) {
                              WriteReport(*report, response);
                            }
                            call->Reply(report.status());
                          });
        return absl::OkStatus();
      });
}

TrainingService::Reactor* TrainingService::ListCheckpoints(
    Context* context, const braid::v1::ListCheckpointsRequest* request,
    braid::v1::ListCheckpointsResponse* response) {
  return HandleUnaryAsync(rpc_, context, "ListCheckpoints", *request, [&](const Call& call) {
    trainers_->ListCheckpoints(
        request->trainer(),
        [call, response](const absl::StatusOr<std::vector<CheckpointInfo>>& infos) {
          if (infos.ok()) {
            for (const CheckpointInfo& info : *infos) {
              WriteCheckpoint(info, response->add_checkpoints());
            }
          }
          call->Reply(infos.status());
        });
    return absl::OkStatus();
  });
}

TrainingService::Reactor* TrainingService::Rollback(Context* context,
                                                    const braid::v1::RollbackRequest* request,
                                                    braid::v1::RollbackResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "Rollback", *request, [&](const Call& call) -> absl::Status {
        if (request->version() < 1) {
          return InvalidField(
              "version",
              absl::StrCat(request->version(), " is not a version (expected a number from 1)"));
        }
        trainers_->Rollback(request->model(), request->version(),
                            [call, response](const absl::StatusOr<VersionChange>& change) {
                              if (change.ok()) {
                                response->set_previous_version(change->previous);
                                response->set_pinned(change->pinned);
                              }
                              call->Reply(change.status());
                            });
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<braid::v1::GetStateDictResponse>* TrainingService::GetStateDict(
    Context* context, const braid::v1::GetStateDictRequest* request) {
  auto* writer =
      new PieceStream<StatePieces>(rpc_, *context, "GetStateDict", *request);  // deletes itself
  if (const absl::Status& error = writer->error(); !error.ok()) {
    writer->Start(error);
    return writer;
  }
  trainers_->GetState(request->trainer(), [writer](absl::StatusOr<std::vector<StateTensor>> state) {
    writer->Start(std::move(state));
  });
  return writer;
}

grpc::ServerWriteReactor<braid::v1::DownloadModelResponse>* TrainingService::DownloadModel(
    Context* context, const braid::v1::DownloadModelRequest* request) {
  auto* writer =
      new PieceStream<FilePieces>(rpc_, *context, "DownloadModel", *request);  // deletes itself
  if (const absl::Status& error = writer->error(); !error.ok()) {
    writer->Start(error);
    return writer;
  }
  const absl::StatusOr<ExportFormat> format = FormatOf(request->format());
  if (!format.ok()) {
    writer->Start(format.status());
    return writer;
  }
  trainers_->Export(request->trainer(), *format,
                    [writer](absl::StatusOr<std::string> file) { writer->Start(std::move(file)); });
  return writer;
}

}  // namespace braid
