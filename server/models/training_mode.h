// Finds operators, such as dropout, that a model was exported with in training mode. They stay in
// training mode when the model is served.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/json_fields.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Returns the names of the training-mode operators in an exported program's `graph`, for example
// "dropout". FAILED_PRECONDITION for a batch norm that updates its running statistics, which are
// buffers of the model.
absl::StatusOr<std::set<std::string>> TrainingOperators(const JsonField& graph);
// Returns the names of the operators that stay in training mode although `module` is in evaluation
// mode, for example in a trace of a module in training mode.
std::set<std::string> TrainingOperators(const torch::jit::Module& module);

// Logs a warning for the model file `path` if `operators` is not empty.
void WarnAboutTrainingOperators(absl::string_view path, const std::set<std::string>& operators);

}  // namespace braid
