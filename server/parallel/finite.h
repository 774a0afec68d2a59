// Whether tensors hold numbers only.
#pragma once

#include "ATen/core/Tensor.h"

namespace braid {

// Whether every element is finite (and their sum: what overflows it is as good as infinite).
// One pass that only reads.
bool IsFinite(const at::Tensor& tensor);

}  // namespace braid
