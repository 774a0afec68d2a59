// Model in a TorchScript file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/models/model.h"
#include "server/models/model_config.h"

namespace braid {

// Opens the file `path` of model `name`. If `config` is nullopt, runs the example that
// torch.utils.bundled_inputs recorded in the file and derives the configuration from it. Runs the
// model, so call it on a worker. FAILED_PRECONDITION if the file is not a valid TorchScript module,
// does not match `config`, or has no example and `config` is nullopt. Throws what LibTorch throws.
absl::StatusOr<std::unique_ptr<Model>> OpenTorchScript(const std::string& path,
                                                       const std::string& name,
                                                       std::optional<ModelConfig> config);

}  // namespace braid
