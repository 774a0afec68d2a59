// Whether tensors, and their sums, hold numbers only.
#pragma once

#include "ATen/core/Tensor.h"

namespace braid {

// The largest magnitude of an element, as a share of the largest that the datatype has: infinity if
// one is not finite, 0 if there is none. The sum of tensors whose shares add up to less than 1 is
// finite. One pass that only reads.
double RangeShare(const at::Tensor& tensor);

}  // namespace braid
