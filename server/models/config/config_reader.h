// config.pbtxt, Triton's model configuration as protobuf text.
//
// Every setting is either applied or rejected by its name. None is ignored.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// A ConfigReader; files that it names lie in its folder. NOT_FOUND if the file cannot be read.
absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name);

// The same from the text. `folder`: the model's.
absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name,
                                        const std::string& folder = "");

// The same in protobuf's JSON, in which a client sends one; a ConfigOverride.
absl::StatusOr<ModelConfig> ParseConfigJson(const std::string& json, const std::string& folder,
                                            const std::string& name);

}  // namespace braid
