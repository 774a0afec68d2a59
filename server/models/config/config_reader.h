// Reads config.pbtxt, Triton's model configuration in protobuf text format.
//
// Every setting is either applied or rejected by its name. None is ignored.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// Reads the file at `path` as a ConfigReader. Label files are in the same folder. NOT_FOUND if the
// file cannot be read.
absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name);

// Parses `text`, the content of a config.pbtxt. folder: the model's folder.
absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name,
                                        const std::string& folder = "");

// Parses a configuration in protobuf's JSON format, which clients send. A ConfigOverride.
absl::StatusOr<ModelConfig> ParseConfigJson(const std::string& json, const std::string& folder,
                                            const std::string& name);

}  // namespace braid
