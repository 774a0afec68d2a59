// config.pbtxt's model_warmup.
#pragma once

#include "absl/status/status.h"
#include "inference/model_config.pb.h"
#include "server/models/model_config.h"

namespace braid {

// Into `config`, whose inputs and max_batch_size are there. Whether the shapes are what the model
// takes is seen when the requests are made.
absl::Status ReadWarmups(const inference::ModelConfig& text, ModelConfig* config);

}  // namespace braid
