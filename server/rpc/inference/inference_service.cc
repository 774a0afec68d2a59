#include "server/rpc/inference/inference_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/version.h"
#include "server/rpc/inference/infer.h"
#include "server/rpc/inference/infer_stream.h"
#include "server/rpc/inference/model_messages.h"
#include "server/rpc/inference/settings.h"
#include "server/rpc/inference/shared_memory.h"

namespace braid {
namespace {

// ModelInfer in flight. If the client cancels or disconnects, the request leaves its queue at once.
class InferCall final : public UnaryCall {
 public:
  InferCall(const RpcContext& rpc, const grpc::CallbackServerContext& context)
      : UnaryCall(rpc, context, "ModelInfer"), deadline_(DeadlineOf(context.deadline())) {}

  absl::Time deadline() const { return deadline_; }

  // Returns DEADLINE_EXCEEDED in place of CANCELLED if gRPC cancelled the call because of its
  // deadline.
  absl::Status ExplainCancel(const absl::Status& status) const {
    const bool late = absl::IsCancelled(status) && absl::Now() >= deadline_;
    return late
               ? absl::DeadlineExceededError("the deadline passed before the request was completed")
               : status;
  }

  const std::shared_ptr<Cancellation>& cancellation() const { return cancellation_; }
  void OnCancel() override { cancellation_->Cancel(); }

 private:
  const absl::Time deadline_;
  const std::shared_ptr<Cancellation> cancellation_ = std::make_shared<Cancellation>();
};

// Lists the served versions that `caller` may see. name, version: restrict the list unless empty.
absl::Status ListStatistics(const ServedModels& models, const Caller& caller,
                            const std::string& name, const std::string& version,
                            inference::ModelStatisticsResponse* response) {
  if (name.empty() && !version.empty()) {
    return InvalidField("version", "set without a name (expected both or neither)");
  }
  int64_t number = 0;
  if (!name.empty()) {
    BRAID_ASSIGN_OR_RETURN(const auto queue, FindVersion(models, name, version, "version"));
    number = version.empty() ? 0 : queue->version();
  }
  for (const ModelState& state : models.List()) {
    const bool requested =
        (name.empty() || name == state.name) && (number == 0 || number == state.version);
    if (!requested || !state.ready || !caller.Sees(state.name)) {
      continue;
    }
    // The version may have been unloaded since the list was made.
    if (const auto queue = models.Find(state.name, state.version); queue.ok()) {
      FillStatistics(**queue, response->add_model_stats());
    }
  }
  return absl::OkStatus();
}

// Returns an empty list if shared memory is disabled (`regions` null), as Triton does: clients
// clean up at start even if they do not use shared memory.
absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> ListRegions(
    const SharedRegions* regions, RegionKind kind, const std::string& name) {
  return regions == nullptr ? SharedRegions().List(kind, name) : regions->List(kind, name);
}
void UnregisterRegions(SharedRegions* regions, RegionKind kind, const std::string& name) {
  if (regions != nullptr) {
    regions->Unregister(kind, name);
  }
}

}  // namespace

InferenceService::Reactor* InferenceService::ServerLive(Context* context,
                                                        const inference::ServerLiveRequest* request,
                                                        inference::ServerLiveResponse* response) {
  return HandleUnary(rpc_, context, "ServerLive", *request, [&] {
    response->set_live(health_->liveness().ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ServerReady(
    Context* context, const inference::ServerReadyRequest* request,
    inference::ServerReadyResponse* response) {
  return HandleUnary(rpc_, context, "ServerReady", *request, [&] {
    response->set_ready(health_->readiness().ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ModelReady(Context* context,
                                                        const inference::ModelReadyRequest* request,
                                                        inference::ModelReadyResponse* response) {
  return HandleUnary(rpc_, context, "ModelReady", *request, [&]() -> absl::Status {
    const auto queue = FindVersion(*models_, request->name(), request->version(), "version");
    if (absl::IsInvalidArgument(queue.status())) {
      return queue.status();
    }
    response->set_ready(health_->readiness().ok() && queue.ok());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ServerMetadata(
    Context* context, const inference::ServerMetadataRequest* request,
    inference::ServerMetadataResponse* response) {
  return HandleUnary(rpc_, context, "ServerMetadata", *request, [&] {
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
  return HandleUnary(rpc_, context, "ModelMetadata", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const auto queue,
                           FindVersion(*models_, request->name(), request->version(), "version"));
    std::vector<int64_t> versions = {queue->version()};
    if (request->version().empty()) {
      BRAID_ASSIGN_OR_RETURN(versions, models_->Versions(request->name()));
    }
    FillMetadata(queue->config(), versions, response);
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::ModelConfig(
    Context* context, const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  return HandleUnary(rpc_, context, "ModelConfig", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const auto queue,
                           FindVersion(*models_, request->name(), request->version(), "version"));
    FillConfig(queue->config(), response->mutable_config());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::RepositoryIndex(
    Context* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  return HandleUnary(rpc_, context, "RepositoryIndex", *request,
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
  return HandleUnaryAsync(rpc_, context, "RepositoryModelLoad", *request,
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
  return HandleUnaryAsync(rpc_, context, "RepositoryModelUnload", *request,
                          [&](const std::shared_ptr<UnaryCall>& call) -> absl::Status {
                            BRAID_RETURN_IF_ERROR(CheckUnloadRequest(*request));
                            control_->Unload(
                                request->model_name(),
                                [call](const absl::Status& status) { call->Reply(status); });
                            return absl::OkStatus();
                          });
}

InferenceService::Reactor* InferenceService::ModelInfer(Context* context,
                                                        const inference::ModelInferRequest* request,
                                                        inference::ModelInferResponse* response) {
  auto* const call = new InferCall(rpc_, *context);  // owned by gRPC and its users
  const std::shared_ptr<UnaryCall> held = call->self();
  const auto start = [&]() -> absl::Status {
    RecordRequestId(*request, &call->facts());
    BRAID_RETURN_IF_ERROR(call->Check(*request));
    const InferContext infer =
        ForCaller({models_, regions_, decode_threads_, RunMode::kMayRunInline}, call->caller());
    const size_t shared = SharedInputBytes(infer.regions, *request);
    BRAID_RETURN_IF_ERROR(call->Admit(rpc_, request->ByteSizeLong() + shared));
    BRAID_RETURN_IF_ERROR(CheckSharedInputs(shared, rpc_.admission->max_bytes()));
    BRAID_ASSIGN_OR_RETURN(auto queue, FindQueue(*models_, *request));
    return SubmitRequest(infer, std::move(queue),
                         {.request = request,
                          .response = response,
                          .facts = &call->facts(),
                          .ticket = call->ticket(),
                          .deadline = call->deadline(),
                          .cancellation = call->cancellation(),
                          .done = [call, held](const absl::Status& status) {
                            call->Reply(call->ExplainCancel(status));
                          }});
  };
  if (const absl::Status status = start(); !status.ok()) {
    call->Reply(call->ExplainCancel(status));
  }
  return call;
}

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(Context* context) {
  return new InferStream({models_, regions_, decode_threads_}, rpc_, context);
}

InferenceService::Reactor* InferenceService::ModelStatistics(
    Context* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  return HandleUnary(
      rpc_, context, "ModelStatistics", *request, [&](const Caller& caller) -> absl::Status {
        return ListStatistics(*models_, caller, request->name(), request->version(), response);
      });
}

InferenceService::Reactor* InferenceService::SystemSharedMemoryStatus(
    Context* context, const inference::SystemSharedMemoryStatusRequest* request,
    inference::SystemSharedMemoryStatusResponse* response) {
  return HandleUnary(rpc_, context, "SystemSharedMemoryStatus", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const auto regions,
                           ListRegions(regions_, RegionKind::kSystem, request->name()));
    for (const auto& region : regions) {
      auto& status = (*response->mutable_regions())[region->name];
      status.set_name(region->name);
      status.set_key(region->key);
      status.set_offset(region->offset);
      status.set_byte_size(region->bytes);
    }
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::SystemSharedMemoryRegister(
    Context* context, const inference::SystemSharedMemoryRegisterRequest* request,
    inference::SystemSharedMemoryRegisterResponse*) {
  return HandleUnary(rpc_, context, "SystemSharedMemoryRegister", *request, [&] {
    return regions_ == nullptr ? SharedMemoryDisabled()
                               : regions_->RegisterSystem(request->name(), request->key(),
                                                          request->offset(), request->byte_size());
  });
}

InferenceService::Reactor* InferenceService::SystemSharedMemoryUnregister(
    Context* context, const inference::SystemSharedMemoryUnregisterRequest* request,
    inference::SystemSharedMemoryUnregisterResponse*) {
  return HandleUnary(rpc_, context, "SystemSharedMemoryUnregister", *request, [&] {
    UnregisterRegions(regions_, RegionKind::kSystem, request->name());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::CudaSharedMemoryStatus(
    Context* context, const inference::CudaSharedMemoryStatusRequest* request,
    inference::CudaSharedMemoryStatusResponse* response) {
  return HandleUnary(rpc_, context, "CudaSharedMemoryStatus", *request, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const auto regions,
                           ListRegions(regions_, RegionKind::kGpu, request->name()));
    for (const auto& region : regions) {
      auto& status = (*response->mutable_regions())[region->name];
      status.set_name(region->name);
      status.set_device_id(static_cast<uint64_t>(region->gpu));
      status.set_byte_size(region->bytes);
    }
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::CudaSharedMemoryRegister(
    Context* context, const inference::CudaSharedMemoryRegisterRequest* request,
    inference::CudaSharedMemoryRegisterResponse*) {
  return HandleUnary(rpc_, context, "CudaSharedMemoryRegister", *request, [&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(CheckGpuMemory(regions_));
    return regions_->RegisterGpu(request->name(), request->raw_handle(), request->device_id(),
                                 request->byte_size());
  });
}

InferenceService::Reactor* InferenceService::CudaSharedMemoryUnregister(
    Context* context, const inference::CudaSharedMemoryUnregisterRequest* request,
    inference::CudaSharedMemoryUnregisterResponse*) {
  return HandleUnary(rpc_, context, "CudaSharedMemoryUnregister", *request, [&] {
    UnregisterRegions(regions_, RegionKind::kGpu, request->name());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::TraceSetting(
    Context* context, const inference::TraceSettingRequest* request,
    inference::TraceSettingResponse* response) {
  return HandleUnary(rpc_, context, "TraceSetting", *request, [&]() -> absl::Status {
    if (!request->model_name().empty()) {
      BRAID_RETURN_IF_ERROR(models_->Find(request->model_name(), 0).status());
    }
    return ExchangeTraceSettings(*request, response);
  });
}

InferenceService::Reactor* InferenceService::LogSettings(
    Context* context, const inference::LogSettingsRequest* request,
    inference::LogSettingsResponse* response) {
  return HandleUnary(rpc_, context, "LogSettings", *request,
                     [&] { return ExchangeLogSettings(*request, response); });
}

}  // namespace braid
