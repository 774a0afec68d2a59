// Removes the batch size check that TorchScript compiles into batch norms.
#pragma once

#include "torch/csrc/jit/api/module.h"

namespace braid {

// Removes from `module` the check of torch.nn.functional that a batch norm in training mode gets
// more than one value per channel. With synchronized batch norm, a chunk may have one row, which is
// normalized together with the rows of other replicas. Also changes copies of the module. Call it
// before the module's first forward pass.
void RemoveBatchSizeChecks(const torch::jit::Module& module);

}  // namespace braid
