// One update by torch.optim's rules, of slices of flat buffers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/training/optim/schedule.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Slices of one flat buffer, and of the optimizer's state for it; a multiple of 64 bytes each.
struct UpdateSlices {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  // By torch.optim's names. "momentum_buffer" counts only where the momentum is not 0.
  std::map<std::string, std::vector<at::Tensor>> state;
};

// Updates `slices`, which have been updated `updates` times before. What comes out does not depend,
// in any bit, on how the elements are cut into slices.
void UpdateInPlace(const OptimizerSpec& spec, const GroupValues& values, int64_t updates,
                   UpdateSlices& slices);

}  // namespace braid
