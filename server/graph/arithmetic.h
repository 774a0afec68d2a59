// Python's arithmetic of numbers, as exported graphs compute sizes with it.
#pragma once

#include <cstddef>

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"

namespace braid {

// An operator of integers, floats and booleans. Integers have 64 bits: a result that needs more is
// an error, as is a division by zero.
struct Arithmetic {
  absl::string_view target;  // "_operator.floordiv"
  size_t arity;
  // `arguments`: as many numbers as `arity`. Throws c10::Error.
  c10::IValue (*apply)(const c10::IValue* arguments);
};

// Returns the operator that a node's target names, or nullptr.
const Arithmetic* FindArithmetic(absl::string_view target);

}  // namespace braid
