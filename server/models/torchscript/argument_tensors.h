// Which values of a graph are the tensors of its arguments.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "server/models/torchscript/torchscript_inputs.h"
#include "torch/csrc/jit/ir/alias_analysis.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {

// What LibTorch knows of which values share memory and which are written to. Attributes count as
// made by the call, and so as nothing that a request sent.
torch::jit::AliasDb AliasesIn(const std::shared_ptr<torch::jit::Graph>& graph);

// Gives each tensor of a graph's arguments one value of its own there, for AliasDb takes each
// argument, and each element of one, for what any other may be. An element of a list or dict that
// is written to is left as it is.
class ArgumentTensors {
 public:
  // `arguments`: the graph's, self left out. They must outlive this.
  ArgumentTensors(const std::shared_ptr<torch::jit::Graph>& graph,
                  const std::vector<ArgumentPlan>& arguments);

  // What `value` is; null if it is none of them.
  const ArgumentPlan* At(const torch::jit::Value* value) const;

 private:
  void Separate(torch::jit::Value* value, const ArgumentPlan* plan);
  void SeparateFrom(const torch::jit::Use& use, const ArgumentPlan& whole);

  torch::jit::Graph& graph_;
  const torch::jit::AliasDb aliases_;  // of the graph as it came
  std::map<const ArgumentPlan*, torch::jit::Value*> values_;
  std::map<const torch::jit::Value*, const ArgumentPlan*> plans_;
};

}  // namespace braid
