// TorchScript modules with pipeline stages. They fit TrainedConfig().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/trained_module.h"

namespace braid {

// Creates a part with parameters w [in, out] and b [out]. The test defines forward().
inline torch::jit::Module Part(const std::string& name, int64_t in, int64_t out) {
  torch::jit::Module part(name);
  part.register_attribute("training", c10::BoolType::get(), true);
  const double step = 0.3 * static_cast<double>(in) + 0.11 * static_cast<double>(out);
  part.register_parameter("w", Weights({in, out}, step), /*is_buffer=*/false);
  part.register_parameter("b", Weights({out}, step + 0.2), /*is_buffer=*/false);
  return part;
}

// Creates a part whose forward(x) is tanh of a linear layer.
inline torch::jit::Module TanhPart(const std::string& name, int64_t in, int64_t out) {
  torch::jit::Module part = Part(name, in, out);
  part.define("def forward(self, x):\n  return torch.tanh(x @ self.w + self.b)\n");
  return part;
}

// Creates a module that runs `parts` in sequence.
inline torch::jit::Module Chain(
    const std::vector<std::pair<std::string, torch::jit::Module>>& parts) {
  torch::jit::Module module = NewModule();
  std::string forward = "x";
  for (const auto& [name, part] : parts) {
    module.register_module(name, part);
    forward = absl::StrCat("self.", name, ".forward(", forward, ")");
  }
  module.define(absl::StrCat("def forward(self, x):\n  return ", forward, "\n"));
  return module;
}

inline torch::jit::Module TwoStages() {
  return Chain({{"first", TanhPart("First", 3, 5)}, {"second", TanhPart("Second", 5, 4)}});
}

}  // namespace braid
