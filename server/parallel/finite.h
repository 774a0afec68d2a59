// Detects non-finite values in tensors and in their sums.
#pragma once

#include "ATen/core/Tensor.h"

namespace braid {

// Returns the largest magnitude in `tensor` divided by the largest value of its datatype. Infinity
// if an element is not finite, 0 if there are no elements. The sum of tensors is finite if their
// shares add up to less than 1. Reads the tensor once.
double RangeShare(const at::Tensor& tensor);
// RangeShare() of a tensor of `type` with elements from `min` to `max`. Both are NaN if an element
// is NaN.
double RangeShare(double min, double max, at::ScalarType type);

}  // namespace braid
