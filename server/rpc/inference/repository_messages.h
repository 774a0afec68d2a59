// Requests that concern the model repository, as Triton's extension has them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/serving/served_models.h"

namespace braid {

// INVALID_ARGUMENT for a name: there is one repository, which has none.
absl::Status CheckRepositoryName(const std::string& name);

// The configuration in JSON that comes with the request, if one does. UNIMPLEMENTED for files that
// come with it, INVALID_ARGUMENT for other parameters.
absl::StatusOr<std::optional<std::string>> ReadLoadRequest(
    const inference::RepositoryModelLoadRequest& request);
// Returns `status`; an error with "failed to load", words that Triton's clients look for, before
// it.
absl::Status LoadFailure(const std::string& name, const absl::Status& status);
// INVALID_ARGUMENT for parameters but `unload_dependents`: no model depends on another here.
absl::Status CheckUnloadRequest(const inference::RepositoryModelUnloadRequest& request);

// "READY", "UNAVAILABLE", or "" for a model that was never asked for.
std::string StateName(const ModelState& state);

}  // namespace braid
