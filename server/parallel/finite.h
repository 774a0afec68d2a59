// Detects non-finite values in tensors and in their sums.
#pragma once

#include "ATen/core/Tensor.h"

namespace braid {

// Returns the largest magnitude in `tensor` divided by the largest value of its datatype. Infinity
// if an element is not finite, 0 if there are no elements. The sum of tensors is finite if their
// shares add up to less than 1. Reads the tensor once.
double RangeShare(const at::Tensor& tensor);
// The same of a tensor of `type` whose elements are between `least` and `most`, both NaN if an
// element is.
double RangeShare(double least, double most, at::ScalarType type);

}  // namespace braid
