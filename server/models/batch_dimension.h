// Two ways to describe a model that has a batch dimension but merges no requests. The server works
// with max_batch_size and dims without the batch; config.pbtxt and clients have max_batch_size: 0
// and dims that begin with -1.
#pragma once

#include <string>

#include "server/models/model_config.h"

namespace braid {

// Takes the batch dimension out of the dims of all outputs, of all inputs but broadcast ones, and
// of their warm-up requests, and marks rows as dependent for `reason`. Returns false and leaves
// `config`, which is not batched, as it is if one of those dims does not begin with -1.
bool SeparateBatchDim(std::string reason, ModelConfig* config);

// The inverse: `config` as clients see it. Models that merge requests stay as they are.
ModelConfig JoinBatchDim(ModelConfig config);

}  // namespace braid
