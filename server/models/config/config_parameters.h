// config.pbtxt's parameters: Braid's own, and those of Triton's backend for PyTorch.
#pragma once

#include "absl/status/status.h"
#include "inference/model_config.pb.h"
#include "server/models/model_config.h"

namespace braid {

// Into `config`, whose inputs and max_batch_size are there. UNIMPLEMENTED, by its name, for a
// parameter that is neither obeyed nor says what is done anyway.
absl::Status ReadParameters(const inference::ModelConfig& text, ModelConfig* config);

}  // namespace braid
