// Selection of the submodules that run in evaluation mode in training.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace braid {

// Returns those of `modules`, the paths of all submodules, in which a pattern is found, and their
// submodules, in order. INVALID_ARGUMENT naming "eval_modules[0]" for an invalid pattern or one
// that matches no module.
absl::StatusOr<std::vector<std::string>> FindEvalModules(const std::vector<std::string>& patterns,
                                                         const std::vector<std::string>& modules);

}  // namespace braid
