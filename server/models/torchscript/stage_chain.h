// Whether a module is what its submodules are, one after the other.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Stages run the submodules at `paths`, each given what the one before returned. INVALID_ARGUMENT
// that says what else forward() does, or in which order, where that is not what the module's own
// forward() computes.
absl::Status CheckChain(const torch::jit::Module& module, const std::vector<std::string>& paths);

}  // namespace braid
