// Makes an NcclClique.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/devices/nccl_clique.h"

namespace braid {

// `gpus`: distinct ones, the primary's first.
absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(std::vector<int> gpus);

}  // namespace braid
