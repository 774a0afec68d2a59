// Models in TorchScript files.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/models/model.h"
#include "server/models/model_config.h"

namespace braid {

// Opens the file `path` of model `name`. Without `config` it is derived from forward's signature
// and the example that torch.utils.bundled_inputs recorded in the file, which is run.
// FAILED_PRECONDITION if there is neither, or if they do not fit. Computes: call it on a worker;
// may throw what LibTorch throws.
absl::StatusOr<std::unique_ptr<Model>> OpenTorchScript(const std::string& path,
                                                       const std::string& name,
                                                       std::optional<ModelConfig> config);

}  // namespace braid
