// config.pbtxt's dynamic_batching.
#pragma once

#include "absl/status/status.h"
#include "inference/model_config.pb.h"
#include "server/models/model_config.h"

namespace braid {

// Fills what concerns the queue into `config`, whose max_batch_size is there. What Triton refuses
// is INVALID_ARGUMENT here too.
absl::Status ReadDynamicBatching(const inference::ModelDynamicBatching& text, ModelConfig* config);

}  // namespace braid
