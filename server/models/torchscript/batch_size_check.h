// A check that TorchScript compiles into batch norms.
#pragma once

#include "torch/csrc/jit/api/module.h"

namespace braid {

// Takes out of `module` the check of torch.nn.functional that a batch norm in training gets more
// than one value a channel: a chunk may be one row that is normalized with those of other replicas.
// Concerns copies of the module too. To be called before its first forward.
void RemoveBatchSizeChecks(const torch::jit::Module& module);

}  // namespace braid
