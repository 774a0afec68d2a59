// TorchScript modules that are made in the test instead of being read from a file.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/models/model_config.h"
#include "server/models/torchscript_replica.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// An empty module that can be put in training and evaluation mode.
inline torch::jit::Module NewModule() {
  torch::jit::Module module("Made");
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

// Replicas of `module`, which takes its inputs in order, each a copy of its own.
inline std::vector<std::unique_ptr<Replica>> MakeReplicas(const torch::jit::Module& module,
                                                          const ModelConfig& config, size_t count) {
  std::vector<size_t> order(config.inputs.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  const TorchScriptReplica original(module, order, config.outputs);
  std::vector<std::unique_ptr<Replica>> replicas;
  for (size_t r = 0; r < count; ++r) {
    replicas.push_back(original.Clone());
  }
  return replicas;
}

}  // namespace braid
