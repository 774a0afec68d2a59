// What one version of a model tells another of its configuration.
#pragma once

#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// `config` of a version, without what its module told of itself, which another version's may tell
// otherwise: number arguments, and the ranges that were found.
ModelConfig DeclaredConfig(ModelConfig config);

// `config` as `current` is configured, for replicas that were made for `config`.
// FAILED_PRECONDITION, naming the tensor, unless the two declare the same inputs and outputs.
absl::StatusOr<ModelConfig> ApplyCurrentConfig(const ModelConfig& config,
                                               const ModelConfig& current);

}  // namespace braid
