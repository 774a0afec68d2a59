// Which workers hold a replica of a model.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"

namespace braid {

// The workers that `groups` choose of `workers`, in that order; all of them if there is no group.
// Each replica of each group has a worker of its own. INVALID_ARGUMENT, naming --devices, if there
// are too few.
absl::StatusOr<std::vector<Worker*>> PlaceReplicas(const std::vector<InstanceGroup>& groups,
                                                   const std::vector<Worker*>& workers);

}  // namespace braid
