// Flattens the result of a TorchScript module into its tensors.
#pragma once

#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "server/models/name_binding.h"

namespace braid {

// Returns all tensors of `result`, in order. A None in a tuple, list or dict becomes an undefined
// tensor. FAILED_PRECONDITION if `result` has any other value.
absl::StatusOr<std::vector<OutputLeaf>> Flatten(const c10::IValue& result);

}  // namespace braid
