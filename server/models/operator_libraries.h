// Libraries with operators that LibTorch does not have, for TorchScript models that call them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace braid {

// Loads them in their order, for as long as the process lives; each may use what those before it
// define. INVALID_ARGUMENT, naming it, for one that cannot be loaded.
absl::Status LoadOperatorLibraries(const std::vector<std::string>& paths);

}  // namespace braid
