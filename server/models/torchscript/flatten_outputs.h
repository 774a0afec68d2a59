// From a TorchScript module's result to its tensors.
#pragma once

#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "server/models/name_binding.h"

namespace braid {

// All tensors of `result`, in order, and each None that is an element of a tuple, list or dict, as
// an undefined one. FAILED_PRECONDITION if it holds anything else.
absl::StatusOr<std::vector<OutputLeaf>> Flatten(const c10::IValue& result);

}  // namespace braid
