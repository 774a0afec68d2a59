// The methods of InferenceService that are Triton's extensions of the protocol, and quick.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/status.h"
#include "server/rpc/inference/inference_service.h"
#include "server/rpc/inference/model_messages.h"
#include "server/rpc/inference/settings.h"
#include "server/rpc/inference/shared_memory.h"
#include "server/rpc/inference/statistics_messages.h"

namespace braid {
namespace {

// All versions of all models that `caller` may see; those of one model, or one version, if `name`
// and `version` say so.
absl::Status ListStatistics(const ServedModels& models, const Caller& caller,
                            const std::string& name, int64_t version,
                            inference::ModelStatisticsResponse* response) {
  if (!name.empty()) {
    BRAID_RETURN_IF_ERROR(models.Find(name, version).status());
  } else if (version != 0) {
    return InvalidField("version", "is there without a name; expected both, or none");
  }
  for (const ModelState& state : models.List()) {
    const bool asked =
        (name.empty() || name == state.name) && (version == 0 || version == state.version);
    if (!asked || !state.ready || !caller.Sees(state.name)) {
      continue;
    }
    // One that is not served any more since the list was made has no statistics.
    if (const auto queue = models.Find(state.name, state.version); queue.ok()) {
      FillStatistics(**queue, response->add_model_stats());
    }
  }
  return absl::OkStatus();
}

// Clients clean up at start even if they will not use shared memory. Without it (`regions` null) or
// without a GPU the list is empty, as in Triton.
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

InferenceService::Reactor* InferenceService::ModelStatistics(
    Context* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  return Answer(
      rpc_, context, "ModelStatistics", *request, [&](const Caller& caller) -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(const int64_t version, ParseVersion(request->version(), "version"));
        return ListStatistics(*models_, caller, request->name(), version, response);
      });
}

InferenceService::Reactor* InferenceService::SystemSharedMemoryStatus(
    Context* context, const inference::SystemSharedMemoryStatusRequest* request,
    inference::SystemSharedMemoryStatusResponse* response) {
  return Answer(rpc_, context, "SystemSharedMemoryStatus", *request, [&]() -> absl::Status {
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
  return Answer(rpc_, context, "SystemSharedMemoryRegister", *request, [&] {
    return regions_ == nullptr ? SharedMemoryIsOff()
                               : regions_->RegisterSystem(request->name(), request->key(),
                                                          request->offset(), request->byte_size());
  });
}

InferenceService::Reactor* InferenceService::SystemSharedMemoryUnregister(
    Context* context, const inference::SystemSharedMemoryUnregisterRequest* request,
    inference::SystemSharedMemoryUnregisterResponse*) {
  return Answer(rpc_, context, "SystemSharedMemoryUnregister", *request, [&] {
    UnregisterRegions(regions_, RegionKind::kSystem, request->name());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::CudaSharedMemoryStatus(
    Context* context, const inference::CudaSharedMemoryStatusRequest* request,
    inference::CudaSharedMemoryStatusResponse* response) {
  return Answer(rpc_, context, "CudaSharedMemoryStatus", *request, [&]() -> absl::Status {
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
  return Answer(rpc_, context, "CudaSharedMemoryRegister", *request, [&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(CheckGpuMemory(regions_));
    return regions_->RegisterGpu(request->name(), request->raw_handle(), request->device_id(),
                                 request->byte_size());
  });
}

InferenceService::Reactor* InferenceService::CudaSharedMemoryUnregister(
    Context* context, const inference::CudaSharedMemoryUnregisterRequest* request,
    inference::CudaSharedMemoryUnregisterResponse*) {
  return Answer(rpc_, context, "CudaSharedMemoryUnregister", *request, [&] {
    UnregisterRegions(regions_, RegionKind::kGpu, request->name());
    return absl::OkStatus();
  });
}

InferenceService::Reactor* InferenceService::TraceSetting(
    Context* context, const inference::TraceSettingRequest* request,
    inference::TraceSettingResponse* response) {
  return Answer(rpc_, context, "TraceSetting", *request, [&]() -> absl::Status {
    if (!request->model_name().empty()) {
      BRAID_RETURN_IF_ERROR(models_->Find(request->model_name(), 0).status());
    }
    return ExchangeTraceSettings(*request, response);
  });
}

InferenceService::Reactor* InferenceService::LogSettings(
    Context* context, const inference::LogSettingsRequest* request,
    inference::LogSettingsResponse* response) {
  return Answer(rpc_, context, "LogSettings", *request,
                [&] { return ExchangeLogSettings(*request, response); });
}

}  // namespace braid
