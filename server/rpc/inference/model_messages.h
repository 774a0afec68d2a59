// Conversions between inference messages about models and the engine's types.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "server/batching/request_queue.h"
#include "server/models/model_config.h"
#include "server/serving/served_models.h"

namespace braid {

// Finds the version that a request names by its number or label; empty: the current one.
// INVALID_ARGUMENT, naming `field`, for other texts; NOT_FOUND.
absl::StatusOr<std::shared_ptr<RequestQueue>> FindVersion(const ServedModels& models,
                                                          const std::string& model,
                                                          const std::string& version,
                                                          absl::string_view field);

void FillMetadata(const ModelConfig& config, const std::vector<int64_t>& versions,
                  inference::ModelMetadataResponse* response);
void FillConfig(const ModelConfig& config, inference::ModelConfig* message);
// Fills in the statistics of a version as Triton defines them; durations in nanoseconds.
void FillStatistics(const RequestQueue& queue, inference::ModelStatistics* message);

// INVALID_ARGUMENT unless `name` is empty: the server has one repository, without a name.
absl::Status CheckRepositoryName(const std::string& name);
// Returns the JSON configuration of the request, if it has one. UNIMPLEMENTED for model files in
// the request, INVALID_ARGUMENT for other parameters.
absl::StatusOr<std::optional<std::string>> ReadLoadRequest(
    const inference::RepositoryModelLoadRequest& request);
// Prefixes an error with "failed to load", which Triton's clients search for. OK stays OK.
absl::Status LoadFailure(const std::string& name, const absl::Status& status);
// INVALID_ARGUMENT for parameters other than `unload_dependents`, which has no effect: models do
// not depend on each other.
absl::Status CheckUnloadRequest(const inference::RepositoryModelUnloadRequest& request);

// "READY", "UNAVAILABLE", or "" for a model that was never loaded.
std::string StateName(const ModelState& state);

}  // namespace braid
