// config.pbtxt, Triton's model configuration as protobuf text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// A ConfigReader. NOT_FOUND if the file cannot be read.
absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name);

// The same from the text.
absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name);

}  // namespace braid
