// Sums gradients where they are into a flat buffer, without flattening each replica's first.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"

namespace braid {

// Writes Σ_r gradients[r][p], in the order of r, of every parameter p into the part of `slice` of
// flat gradient buffer `buffer` of `flat` that is p's. The gradients are dense and contiguous, in
// memory that the calling thread reaches; undefined: zero. Returns whether all sums are finite, so
// that nobody need read the gradients for that alone.
bool SumGradients(const std::vector<std::vector<at::Tensor>>& gradients, const FlatParameters& flat,
                  size_t buffer, const Slice& slice);

}  // namespace braid
