// The requests of model_warmup: run by every replica before the model is ready.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/models/model_config.h"
#include "server/parallel/replica_set.h"

namespace braid {

// `folder`: the model's, with the files of inputs in warmup/. The first error of a request that
// does not fit the model, or that a replica fails on. Blocks; the workers do what else they have to
// between two runs.
absl::Status WarmUp(const ModelConfig& config, const std::string& folder,
                    const ReplicaSet& replicas);

}  // namespace braid
