// TorchScript modules that tests define from source.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "server/models/model_config.h"
#include "server/models/torchscript/module_state.h"
#include "server/models/torchscript/torchscript_replica.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Creates an empty module with a training mode.
inline torch::jit::Module NewModule() {
  torch::jit::Module module("Made");
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

// Creates a replica of `module` with the inputs and outputs of `config`.
inline std::unique_ptr<Replica> MakeReplica(const torch::jit::Module& module,
                                            const ModelConfig& config) {
  auto replica = TorchScriptReplica::Create(module, config.inputs, config.outputs,
                                            MayChangeStateInEval(module));
  EXPECT_TRUE(replica.ok()) << replica.status();
  return replica.ok() ? *std::move(replica) : nullptr;
}

// Creates several replicas of copies of `module`.
inline std::vector<std::unique_ptr<Replica>> MakeReplicas(const torch::jit::Module& module,
                                                          const ModelConfig& config, size_t count) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (size_t r = 0; r < count; ++r) {
    replicas.push_back(MakeReplica(module.deepcopy(), config));
  }
  return replicas;
}

}  // namespace braid
