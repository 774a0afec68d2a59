// A module's forward() as one graph, for analysis.
#pragma once

#include <memory>
#include <vector>

#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {

// Returns a copy of the graph of forward() with calls and forks inlined. Calls whose target is
// known only at run time, methods of interfaces, stay calls. Do not run the graph.
std::shared_ptr<torch::jit::Graph> InlinedForward(const torch::jit::Module& module);

// Returns the nodes of `graph` in order, including those of inner blocks.
std::vector<torch::jit::Node*> AllNodes(torch::jit::Graph* graph);

}  // namespace braid
