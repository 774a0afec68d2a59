// One update of slices of flat buffers, by the formulas of torch.optim.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/training/optim/schedule.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Slices of one flat buffer and of the optimizer's state for it, each a multiple of 64 bytes long.
struct UpdateSlices {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  // By torch.optim's names. "momentum_buffer" is used only if the momentum is not 0.
  std::map<std::string, std::vector<at::Tensor>> state;
};

// Updates `slices`, which have been updated `updates` times before. The result does not depend, bit
// for bit, on how the elements are cut into slices.
void UpdateInPlace(const OptimizerSpec& spec, const GroupValues& values, int64_t updates,
                   UpdateSlices& slices);

}  // namespace braid
