// What integer inputs may hold because of the embeddings that they index.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "server/models/model_config.h"
#include "server/models/torchscript/argument_plan.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Sets the range of each integer input that has none and that forward() always looks up in an
// embedding, whole, as it came or in another shape or integer type. What forward() writes to in
// place has none: the writing may be what puts its values in the range. `arguments`: forward's,
// from `inputs`.
void FindEmbeddingRanges(const torch::jit::Module& module,
                         const std::vector<ArgumentPlan>& arguments,
                         std::vector<TensorSpec>* inputs);
// The weights of the embeddings with scale_grad_by_freq that forward() may look up, those with a
// flag that is known only as it runs included. Undefined: a weight that forward() computes.
std::vector<at::Tensor> FrequencyScaledWeights(const torch::jit::Module& module);

}  // namespace braid
