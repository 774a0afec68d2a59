// The line of a model's source that a node of an exported graph came from.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/base/json_fields.h"

namespace braid {

// The innermost line of `stack_trace`, Python's text, that is not generated code, as in
// "model.py, line 12, in forward: x = self.linear(x)"; empty if there is none.
std::string InnermostLine(absl::string_view stack_trace);

// The model's line of a node by its metadata, else the submodule that made it, as in "encoder.0
// (Linear)"; empty if the metadata has neither.
std::string ModelLine(const JsonField& node);

}  // namespace braid
