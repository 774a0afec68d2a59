// Sums the gradients of replicas into a flat buffer without flattening each replica's gradients.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"

namespace braid {

// Writes Σ_r gradients[r][p] for every parameter p to flat gradient buffer `buffer` of `flat`,
// within `slice`. Adds in the order of r. Gradients are dense, contiguous and accessible from the
// calling thread; undefined means zero. Returns true if all sums are finite, which saves another
// pass over the gradients.
bool SumGradients(const std::vector<std::vector<at::Tensor>>& gradients, const FlatParameters& flat,
                  size_t buffer, const Slice& slice);

}  // namespace braid
