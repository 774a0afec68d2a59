// Collectives by NCCL: one thread drives all GPUs, every collective as one group.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/communicator.h"

namespace braid {

// `workers`: each on a GPU of its own, the primary's first. NCCL is not thread-safe: the
// communicator's calls come from one thread at a time, while the workers' streams are idle.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNccl(std::vector<Worker*> workers);

}  // namespace braid
