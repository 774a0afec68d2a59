// Model configurations for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/models/model_config.h"

namespace braid {

// Configuration of model "m".
inline ModelConfig MakeConfig(int64_t max_batch_size, std::vector<TensorSpec> inputs,
                              std::vector<TensorSpec> outputs) {
  ModelConfig config;
  config.name = std::string("m");
  config.max_batch_size = max_batch_size;
  config.inputs = std::move(inputs);
  config.outputs = std::move(outputs);
  return config;
}

}  // namespace braid
