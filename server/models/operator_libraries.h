// Shared libraries with custom operators for TorchScript models.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace braid {

// Loads the libraries in the given order; later ones may use symbols of earlier ones. They stay
// loaded until the process exits. INVALID_ARGUMENT, naming the path, if one cannot be loaded.
absl::Status LoadOperatorLibraries(const std::vector<std::string>& paths);

}  // namespace braid
