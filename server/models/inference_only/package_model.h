// Models in packages that can only be run.
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

// The model `name` of `package`. Without `config` it is derived from what the package says of its
// inputs, and from what it returns for zeros on `device`; it is batched if dim 0 of every input may
// be of any size. FAILED_PRECONDITION if they do not fit, or if the package cannot run here.
// Computes: call it on `device`'s worker; may throw what LibTorch throws.
absl::StatusOr<std::unique_ptr<Model>> OpenPackage(std::shared_ptr<const InferencePackage> package,
                                                   const std::string& name,
                                                   std::optional<ModelConfig> config,
                                                   c10::Device device);

}  // namespace braid
