#include "server/rpc/inference/inference_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/version.h"
#include "server/rpc/inference/infer_call.h"
#include "server/rpc/inference/infer_stream.h"
#include "server/rpc/inference/model_messages.h"
#include "server/rpc/inference/repository_messages.h"

namespace braid {

InferenceService::Reactor* InferenceService::ServerLive(Context* context,
                                                        const inference::ServerLiveRequest* request,
                                                        inference::ServerLiveResponse* response) {
  return Answer(rpc_, context, "ServerLive", *request, [&] {
    response->set_live(health_->liveness().ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ServerReady(
    Context* context, const inference::ServerReadyRequest* request,
    inference::ServerReadyResponse* response) {
  return Answer(rpc_, context, "ServerReady", *request, [&] {
    response->set_ready(health_->readiness().ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ModelReady(Context* context,
                                                        const inference::ModelReadyRequest* request,
                                                        inference::ModelReadyResponse* response) {
  return Answer(rpc_, context, "ModelReady", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const int64_t version, ParseVersion(request->version(), "version"));
    response->set_ready(health_->readiness().ok() && models_->Find(request->name(), version).ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ServerMetadata(
    Context* context, const inference::ServerMetadataRequest* request,
    inference::ServerMetadataResponse* response) {
  return Answer(rpc_, context, "ServerMetadata", *request, [&] {
    response->set_name("braid");
    response->set_version(kVersion);
    for (const char* extension :
         {"classification", "logging", "model_configuration", "model_repository",
          "model_repository(unload_dependents)", "parameters", "schedule_policy", "statistics"}) {
      response->add_extensions(extension);
    }
    if (regions_ != nullptr) {
      response->add_extensions("system_shared_memory");
      if (regions_->has_gpus()) {
        response->add_extensions("cuda_shared_memory");
      }
    }
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ModelMetadata(
    Context* context, const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  return Answer(rpc_, context, "ModelMetadata", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const int64_t version, ParseVersion(request->version(), "version"));
    BRAID_ASSIGN_OR_RETURN(const auto queue, models_->Find(request->name(), version));
    std::vector<int64_t> versions = {queue->version()};
    if (version == 0) {
      BRAID_ASSIGN_OR_RETURN(versions, models_->Versions(request->name()));
    }
    FillMetadata(queue->config(), versions, response);
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ModelConfig(
    Context* context, const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  return Answer(rpc_, context, "ModelConfig", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const int64_t version, ParseVersion(request->version(), "version"));
    BRAID_ASSIGN_OR_RETURN(const auto queue, models_->Find(request->name(), version));
    FillConfig(queue->config(), response->mutable_config());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::RepositoryIndex(
    Context* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  return Answer(rpc_, context, "RepositoryIndex", *request,
                [&](const Caller& caller) -> absl::Status {
                  BRAID_RETURN_IF_ERROR(CheckRepositoryName(request->repository_name()));
                  for (const ModelState& state : models_->List()) {
                    if (!caller.Sees(state.name) || (request->ready() && !state.ready)) {
                      continue;
                    }
                    auto* model = response->add_models();
                    model->set_name(state.name);
                    model->set_version(state.version > 0 ? absl::StrCat(state.version) : "");
                    model->set_state(StateName(state));
                    model->set_reason(state.reason);
                  }
                  return absl::OkStatus();
                });
}

InferenceService::Reactor* InferenceService::RepositoryModelLoad(
    Context* context, const inference::RepositoryModelLoadRequest* request,
    inference::RepositoryModelLoadResponse*) {
  return AnswerLater(rpc_, context, "RepositoryModelLoad", *request,
                     [&](const std::shared_ptr<UnaryCall>& call) -> absl::Status {
                       const std::string& name = request->model_name();
                       auto config = ReadLoadRequest(*request);
                       if (!config.ok()) {
                         return LoadFailure(name, config.status());
                       }
                       control_->Load(name, *std::move(config),
                                      [call, name](const absl::Status& status) {
                                        call->Reply(LoadFailure(name, status));
                                      });
                       return absl::OkStatus();
                     });
}

InferenceService::Reactor* InferenceService::RepositoryModelUnload(
    Context* context, const inference::RepositoryModelUnloadRequest* request,
    inference::RepositoryModelUnloadResponse*) {
  return AnswerLater(rpc_, context, "RepositoryModelUnload", *request,
                     [&](const std::shared_ptr<UnaryCall>& call) -> absl::Status {
                       BRAID_RETURN_IF_ERROR(CheckUnloadRequest(*request));
                       control_->Unload(request->model_name(), [call](const absl::Status& status) {
                         call->Reply(status);
                       });
                       return absl::OkStatus();
                     });
}

InferenceService::Reactor* InferenceService::ModelInfer(Context* context,
                                                        const inference::ModelInferRequest* request,
                                                        inference::ModelInferResponse* response) {
  return new InferCall({models_, regions_}, rpc_, context, *request, response);
}

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(Context* context) {
  return new InferStream({models_, regions_}, rpc_, context);
}

}  // namespace braid
