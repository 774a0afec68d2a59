// Checks that a module is the sequential composition of submodules, its pipeline stages.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Checks that forward() of `module` computes the same as the submodules at `paths`, run in order,
// each on the results of the previous one. INVALID_ARGUMENT with the difference if it does not.
absl::Status CheckChain(const torch::jit::Module& module, const std::vector<std::string>& paths);

}  // namespace braid
