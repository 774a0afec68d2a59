// Analyses the embeddings that forward() looks up: the ranges of indices, and weights whose
// gradients are scaled by frequency.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "server/models/model_config.h"
#include "server/models/torchscript/argument_plan.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Sets the range of each integer input without one that forward() always uses as indices of an
// embedding. All of the input must be used, possibly in another shape or integer type. Inputs that
// forward() modifies in place get no range: the modification may move values into the range.
// arguments: the plans for `inputs`.
void FindEmbeddingRanges(const torch::jit::Module& module,
                         const std::vector<ArgumentPlan>& arguments,
                         std::vector<TensorSpec>* inputs);

// Returns the weights of the embeddings with scale_grad_by_freq that forward() may look up,
// including those whose flag is known only at run time. Their gradient is divided by how often an
// index occurs in the batch. An undefined tensor stands for a weight that forward() computes.
std::vector<at::Tensor> FrequencyScaledWeights(const torch::jit::Module& module);

}  // namespace braid
