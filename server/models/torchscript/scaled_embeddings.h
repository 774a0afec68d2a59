// Embeddings whose gradient is divided by how often each index occurs (scale_grad_by_freq).
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// The weights of the embeddings with scale_grad_by_freq that forward() may look up, those with a
// flag that is known only as it runs included. Undefined: a weight that forward() computes.
std::vector<at::Tensor> WeightsScaledByFrequency(const torch::jit::Module& module);

}  // namespace braid
