// Copies of many tensors at once.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"

namespace braid {

// Copies from[i] to to[i], which have the same shape and datatype. On a GPU, the copies of one
// datatype are one kernel. Call it without autograd.
void CopyTensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

}  // namespace braid
