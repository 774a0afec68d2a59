// What the wire says of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/models/model_config.h"

namespace braid {

// The version of a request: 0 for "", which is the newest. INVALID_ARGUMENT if it is no number
// from 1.
absl::StatusOr<int64_t> ParseVersion(const std::string& version, absl::string_view field);

void FillMetadata(const ModelConfig& config, const std::vector<int64_t>& versions,
                  inference::ModelMetadataResponse* response);
void FillConfig(const ModelConfig& config, inference::ModelConfig* message);

}  // namespace braid
