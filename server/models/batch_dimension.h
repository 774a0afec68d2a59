// Converts between two descriptions of a model that has a batch dimension but does not merge
// requests. Internally, max_batch_size is positive and dims omit the batch dimension. In
// config.pbtxt and for clients, max_batch_size is 0 and dims have -1 at the batch dimension, which
// is TensorSpec::batch_dim.
#pragma once

#include <string>

#include "server/models/model_config.h"

namespace braid {

// Removes the batch dimension from the dims of outputs, of inputs that are not broadcast, and of
// warm-up requests, and marks rows as dependent for `reason`. `config` is not batched. Returns
// false and leaves `config` unchanged if any of these dims does not have -1 there.
bool SeparateBatchDim(std::string reason, ModelConfig* config);

// Inverse of SeparateBatchDim(): returns `config` as clients see it. Does not change models that
// merge requests.
ModelConfig JoinBatchDim(ModelConfig config);

}  // namespace braid
