// What a module's forward does, in one graph.
#pragma once

#include <memory>
#include <vector>

#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {

// A copy of forward's graph with all that it calls, and forks, in place of the calls. What cannot
// be told before it runs, a method of an interface, stays a call. To be looked at, not to be run.
std::shared_ptr<torch::jit::Graph> InlinedForward(const torch::jit::Module& module);

// The nodes of `graph` in their order, those of inner blocks included.
std::vector<torch::jit::Node*> AllNodes(torch::jit::Graph* graph);

}  // namespace braid
