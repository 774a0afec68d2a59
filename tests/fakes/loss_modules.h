// TorchScript losses as a client sends them.
#pragma once

#include <sstream>
#include <string>

#include "torch/csrc/jit/api/module.h"

namespace braid {

// The file of a module of these methods.
inline std::string LossModuleFile(const std::string& methods) {
  torch::jit::Module module("Loss");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(methods);
  std::ostringstream file;
  module.save(file);
  return file.str();
}

// One whose forward(output, target) is `body`.
inline std::string LossModuleOf(const std::string& body) {
  return LossModuleFile("def forward(self, output, target):\n  " + body + "\n");
}

}  // namespace braid
