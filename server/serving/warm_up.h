// Runs the model_warmup requests on every replica before the model is ready.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/models/model_config.h"
#include "server/parallel/replica_set.h"

namespace braid {

// folder: of the model; files of inputs are in folder/warmup/. Returns the first error of a request
// that does not match the model, or that fails on a replica. Blocks; the workers run other work
// between two runs.
absl::Status WarmUp(const ModelConfig& config, const std::string& folder,
                    const ReplicaSet& replicas);

}  // namespace braid
