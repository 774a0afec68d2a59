// Python's arithmetic of numbers, with which exported graphs compute sizes.
#pragma once

#include <cstddef>

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"

namespace braid {

// Operator on integers, floats and booleans. Integers have 64 bits; overflow and division by zero
// are errors.
struct Arithmetic {
  absl::string_view target;  // "_operator.floordiv"
  size_t arity;
  // `arguments`: as many numbers as `arity`. Throws c10::Error.
  c10::IValue (*apply)(const c10::IValue* arguments);
};

// Returns the operator that a node's target names, or nullptr.
const Arithmetic* FindArithmetic(absl::string_view target);

}  // namespace braid
