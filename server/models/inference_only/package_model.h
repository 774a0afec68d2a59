// Model in an inference-only package.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "server/models/inference_only/inference_package.h"
#include "server/models/model.h"
#include "server/models/model_config.h"

namespace braid {

// Creates model `name` from `package`. If `config` is nullopt, derives it from the package's inputs
// and from its outputs for zeros on `device`. The derived model is batched if dim 0 of every input
// is dynamic. Runs the model, so call it on the worker of `device`. FAILED_PRECONDITION if `config`
// does not match, or if the package cannot run on `device`. Throws what LibTorch throws.
absl::StatusOr<std::unique_ptr<Model>> OpenPackage(std::shared_ptr<const InferencePackage> package,
                                                   const std::string& name,
                                                   std::optional<ModelConfig> config,
                                                   c10::Device device);

}  // namespace braid
