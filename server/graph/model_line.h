// Finds the line of a model's source code for a node of an exported graph.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/base/json_fields.h"

namespace braid {

// Returns the innermost frame of `stack_trace`, in Python's format, that is not generated code, for
// example "model.py, line 12, in forward: x = self.linear(x)". Empty if there is none.
std::string InnermostLine(absl::string_view stack_trace);

// Returns the source line in a node's metadata, or else the submodule, for example
// "encoder.0 (Linear)". Empty if the metadata has neither.
std::string ModelLine(const JsonField& node);

}  // namespace braid
