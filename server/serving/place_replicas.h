// Chooses the workers that hold a replica of a model.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"

namespace braid {

// Chooses workers for `groups`, in the order of `workers`; all workers if there is no group. Each
// replica gets its own worker. INVALID_ARGUMENT, naming --devices, if there are too few.
absl::StatusOr<std::vector<Worker*>> PlaceReplicas(const std::vector<InstanceGroup>& groups,
                                                   const std::vector<Worker*>& workers);

}  // namespace braid
