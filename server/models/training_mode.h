// Operators that a model was exported with in training mode, and that stay in it.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/json_fields.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Names of the training-mode operators in `graph`, an exported program, such as "dropout".
// FAILED_PRECONDITION for a batch norm that changes its running statistics, which are the model's
// buffers.
absl::StatusOr<std::set<std::string>> TrainingOperators(const JsonField& graph);
// Names of the operators that stay in training mode although `module` is in evaluation mode, as in
// a trace of a module in training mode.
std::set<std::string> TrainingOperators(const torch::jit::Module& module);

// Logs a warning that the model in the file `path` is served with `operators`, if there are any.
void WarnAboutTrainingOperators(absl::string_view path, const std::set<std::string>& operators);

}  // namespace braid
