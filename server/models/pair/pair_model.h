// Models that were exported as a pair of graphs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/models/model.h"
#include "server/models/model_config.h"

namespace braid {

// Opens the package `path` of model `name`. Without `config` it is derived from what train.json
// says. device: runs the self-test of a package of another PyTorch; current on the calling thread.
// FAILED_PRECONDITION if they do not fit, or if the package cannot be used here.
absl::StatusOr<std::unique_ptr<Model>> OpenPair(const std::string& path, const std::string& name,
                                                std::optional<ModelConfig> config,
                                                c10::Device device);

}  // namespace braid
