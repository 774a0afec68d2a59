#include "server/rpc/model_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/status.h"
#include "server/rpc/durability_message.h"

namespace braid {
namespace {

using braid::v1::ModelVersion;
using Call = std::shared_ptr<UnaryCall>;

ModelVersion::Origin OriginOf(VersionInfo::Origin origin) {
  switch (origin) {
    case VersionInfo::Origin::kUnknown:
      return ModelVersion::ORIGIN_UNSPECIFIED;
    case VersionInfo::Origin::kExported:
      return ModelVersion::ORIGIN_EXPORTED;
    case VersionInfo::Origin::kPublished:
      return ModelVersion::ORIGIN_PUBLISHED;
    case VersionInfo::Origin::kUploaded:
      return ModelVersion::ORIGIN_UPLOADED;
  }
  return ModelVersion::ORIGIN_UNSPECIFIED;
}

ModelVersion::State StateOf(VersionInfo::State state) {
  switch (state) {
    case VersionInfo::State::kReady:
      return ModelVersion::STATE_READY;
    case VersionInfo::State::kIdle:
      return ModelVersion::STATE_IDLE;
    case VersionInfo::State::kUnavailable:
      return ModelVersion::STATE_UNAVAILABLE;
    case VersionInfo::State::kIgnored:
      return ModelVersion::STATE_IGNORED;
  }
  return ModelVersion::STATE_UNSPECIFIED;
}

void WriteVersion(const std::string& model, const VersionInfo& info, ModelVersion* message) {
  message->set_model(model);
  message->set_version(info.version);
  message->set_origin(OriginOf(info.origin));
  message->set_trainer(info.trainer);
  message->set_step(info.step);
  message->set_state(StateOf(info.state));
  message->set_reason(info.reason);
  message->set_serving(info.serving);
  message->set_pinned(info.pinned);
  message->mutable_labels()->Add(info.labels.begin(), info.labels.end());
  message->set_durability(ToMessage(info.durability.durability));
  message->set_durability_reason(info.durability.reason);
  if (info.created != absl::InfinitePast()) {
    message->set_created(absl::ToDoubleSeconds(info.created - absl::UnixEpoch()));
  }
}

// INVALID_ARGUMENT unless `version` is at least `least`.
absl::Status CheckVersion(int64_t version, int64_t least) {
  if (version >= least) {
    return absl::OkStatus();
  }
  return InvalidField(
      "version", absl::StrCat(version, " is not a version (expected a number from ", least, ")"));
}

// Lists one model, or with an empty name all models that the caller may see.
absl::Status List(const Publisher& publisher, const Caller& caller, const std::string& model,
                  braid::v1::ListVersionsResponse* response) {
  std::vector<std::string> models = {model};
  if (model.empty()) {
    BRAID_ASSIGN_OR_RETURN(models, publisher.ListModels());
  }
  for (const std::string& name : models) {
    if (!caller.Sees(name)) {
      continue;
    }
    const absl::StatusOr<std::vector<VersionInfo>> versions = publisher.ListVersions(name);
    if (absl::IsNotFound(versions.status()) && model.empty()) {
      continue;  // removed since the models were listed
    }
    BRAID_RETURN_IF_ERROR(versions.status());
    for (const VersionInfo& info : *versions) {
      WriteVersion(name, info, response->add_versions());
    }
  }
  return absl::OkStatus();
}

}  // namespace

ModelService::Reactor* ModelService::ListVersions(Context* context,
                                                  const braid::v1::ListVersionsRequest* request,
                                                  braid::v1::ListVersionsResponse* response) {
  return HandleUnaryAsync(rpc_, context, "ListVersions", *request, [&](const Call& call) {
    files_.Post([this, call, request, response] {
      call->Reply(List(*publisher_, call->caller(), request->model(), response));
    });
    return absl::OkStatus();
  });
}

ModelService::Reactor* ModelService::Pin(Context* context, const braid::v1::PinRequest* request,
                                         braid::v1::PinResponse* response) {
  return HandleUnaryAsync(rpc_, context, "Pin", *request, [&](const Call& call) -> absl::Status {
    BRAID_RETURN_IF_ERROR(CheckVersion(request->version(), 1));
    changes_.Post([this, call, request, response] {
      const auto change = publisher_->Pin(request->model(), request->version());
      if (change.ok()) {
        response->set_previous_version(change->previous);
      }
      call->Reply(change.status());
    });
    return absl::OkStatus();
  });
}

ModelService::Reactor* ModelService::Unpin(Context* context, const braid::v1::UnpinRequest* request,
                                           braid::v1::UnpinResponse* response) {
  return HandleUnaryAsync(rpc_, context, "Unpin", *request, [&](const Call& call) {
    changes_.Post([this, call, request, response] {
      const absl::StatusOr<int64_t> version = publisher_->Unpin(request->model());
      if (version.ok()) {
        response->set_version(*version);
        call->RecordAudit("version", *version);
      }
      call->Reply(version.status());
    });
    return absl::OkStatus();
  });
}

ModelService::Reactor* ModelService::SetLabel(Context* context,
                                              const braid::v1::SetLabelRequest* request,
                                              braid::v1::SetLabelResponse* response) {
  return HandleUnaryAsync(
      rpc_, context, "SetLabel", *request, [&](const Call& call) -> absl::Status {
        BRAID_RETURN_IF_ERROR(CheckVersion(request->version(), 0));
        changes_.Post([this, call, request, response] {
          const absl::StatusOr<int64_t> previous =
              publisher_->SetLabel(request->model(), request->label(), request->version());
          if (previous.ok()) {
            response->set_previous_version(*previous);
          }
          call->Reply(previous.status());
        });
        return absl::OkStatus();
      });
}

ModelService::Reactor* ModelService::DeleteVersion(Context* context,
                                                   const braid::v1::DeleteVersionRequest* request,
                                                   braid::v1::DeleteVersionResponse*) {
  return HandleUnaryAsync(rpc_, context, "DeleteVersion", *request,
                          [&](const Call& call) -> absl::Status {
                            BRAID_RETURN_IF_ERROR(CheckVersion(request->version(), 1));
                            changes_.Post([this, call, request] {
                              call->Reply(publisher_->Delete(request->model(), request->version()));
                            });
                            return absl::OkStatus();
                          });
}

ModelService::Reactor* ModelService::ReserveVersion(Context* context,
                                                    const braid::v1::ReserveVersionRequest* request,
                                                    braid::v1::ReserveVersionResponse* response) {
  return HandleUnaryAsync(rpc_, context, "ReserveVersion", *request, [&](const Call& call) {
    changes_.Post([this, call, request, response] {
      const absl::StatusOr<int64_t> version = publisher_->Reserve(request->model());
      if (version.ok()) {
        response->set_version(*version);
        call->RecordAudit("version", *version);
      }
      call->Reply(version.status());
    });
    return absl::OkStatus();
  });
}

grpc::ServerReadReactor<braid::v1::UploadVersionRequest>* ModelService::UploadVersion(
    Context* context, braid::v1::UploadVersionResponse* response) {
  return new UploadStream(uploads_, rpc_, *context, response);  // deletes itself
}

}  // namespace braid
