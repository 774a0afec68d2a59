// Whether a graph of torch.export, in JSON, is put together as LibTorch's interpreter takes for
// granted: one that is not would end the process.
#pragma once

#include "absl/status/status.h"
#include "server/base/json_fields.h"

namespace braid {

// `graph`, and what its module's `signature` says of it. FAILED_PRECONDITION that names the field.
absl::Status CheckGraph(const JsonField& graph, const JsonField& signature);

}  // namespace braid
