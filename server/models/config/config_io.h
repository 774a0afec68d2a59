// config.pbtxt's inputs and outputs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/model_config.pb.h"
#include "server/models/model_config.h"

namespace braid {

// `folder`: the model's, where files of labels lie. INVALID_ARGUMENT and UNIMPLEMENTED as for a
// ConfigReader.
absl::StatusOr<std::vector<TensorSpec>> ReadInputSpecs(const inference::ModelConfig& text);
absl::StatusOr<std::vector<TensorSpec>> ReadOutputSpecs(const inference::ModelConfig& text,
                                                        const std::string& folder);

}  // namespace braid
