// All that a trainer's weights, optimizer and accumulated gradients are at one moment, in host
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/base/host_tensor.h"
#include "server/training/trainer/operation.h"

namespace braid {

struct TrainingSnapshot {
  std::vector<StateTensor> model;
  // "<parameter>.<state>", as torch.optim names them; absent ones are zero.
  std::vector<HostTensor> optimizer;
  // Of each trainable parameter by name how often it has been updated.
  std::vector<std::string> parameters;
  std::vector<int64_t> updates;
  // "<replica>/<parameter>": of each replica, so that a sum goes on in the same order.
  std::vector<HostTensor> gradients;
  int64_t accumulated = 0;
  int64_t left_out = 0;
  bool overflow = false;
  std::vector<double> grad_scaler;
};

}  // namespace braid
