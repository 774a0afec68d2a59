// config.pbtxt's version_policy and instance_group: what is served, and where.
#pragma once

#include "absl/status/status.h"
#include "inference/model_config.pb.h"
#include "server/models/model_config.h"

namespace braid {

absl::Status ReadVersionPolicy(const inference::ModelConfig& text, ModelConfig* config);

// Whether this server has such devices is seen when the model is loaded.
absl::Status ReadInstanceGroups(const inference::ModelConfig& text, ModelConfig* config);

}  // namespace braid
