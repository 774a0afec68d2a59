// Checks the structure of torch.export's graphs in JSON. LibTorch assumes that it is valid: an
// invalid graph could end the process.
#pragma once

#include "absl/status/status.h"
#include "server/base/json_fields.h"

namespace braid {

// Checks that every tensor is defined before its use, and that the numbers of inputs and outputs
// match the module's `signature`. FAILED_PRECONDITION naming the field.
absl::Status CheckGraph(const JsonField& graph, const JsonField& signature);

}  // namespace braid
