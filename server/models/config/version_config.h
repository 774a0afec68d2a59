// Transfers the configuration of one version of a model to another version.
#pragma once

#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// Returns `config` without what was derived from the version's module, which may differ in another
// version: scalar arguments and derived ranges.
ModelConfig DeclaredConfig(ModelConfig config);

// Returns the settings of `current` with the inputs of `config`, for replicas that were created
// with `config`. FAILED_PRECONDITION, naming the tensor, unless both declare the same inputs and
// outputs.
absl::StatusOr<ModelConfig> ApplyCurrentConfig(const ModelConfig& config,
                                               const ModelConfig& current);

}  // namespace braid
