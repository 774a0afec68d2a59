// NcclClique with NCCL.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/nccl_clique.h"

namespace braid {

// Initializes NCCL on distinct `gpus`, the primary's first. Blocks.
absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(std::vector<int> gpus);

}  // namespace braid
