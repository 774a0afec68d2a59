// Model in an exported pair.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/models/model.h"
#include "server/models/model_config.h"

namespace braid {

// Opens the package `path` of model `name`. If `config` is nullopt, derives it from train.json.
// device: the calling thread's current device. It runs the self-test, which is done if another
// PyTorch release exported the package. FAILED_PRECONDITION if `config` does not match, or if the
// package cannot be used.
absl::StatusOr<std::unique_ptr<Model>> OpenPair(const std::string& path, const std::string& name,
                                                std::optional<ModelConfig> config,
                                                c10::Device device);

}  // namespace braid
