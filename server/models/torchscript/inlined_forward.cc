#include "server/models/torchscript/inlined_forward.h"

#include <algorithm>

#include "torch/csrc/jit/api/function_impl.h"
#include "torch/csrc/jit/passes/inline_fork_wait.h"
#include "torch/csrc/jit/passes/inliner.h"

namespace braid {
namespace {

using torch::jit::Block;
using torch::jit::Node;

bool CanBeInlined(const Node& node) {
  if (node.kind() == torch::jit::prim::CallMethod) {
    const auto callee = node.input(0)->type()->cast<c10::ClassType>();
    return callee && torch::jit::tryToGraphFunction(callee->getMethod(node.s(c10::attr::name)));
  }
  return node.kind() == torch::jit::prim::CallFunction;
}

bool HasCalls(const Block* block) {
  return std::any_of(block->nodes().begin(), block->nodes().end(), [](const Node* node) {
    const auto blocks = node->blocks();
    return CanBeInlined(*node) || std::any_of(blocks.begin(), blocks.end(), HasCalls);
  });
}

void CollectNodes(Block* block, std::vector<Node*>* nodes) {
  for (Node* node : block->nodes()) {
    nodes->push_back(node);
    for (Block* inner : node->blocks()) {
      CollectNodes(inner, nodes);
    }
  }
}

}  // namespace

std::shared_ptr<torch::jit::Graph> InlinedForward(const torch::jit::Module& module) {
  std::shared_ptr<torch::jit::Graph> graph =
      torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  // Workers disable the optimizer, so that each round inlines one level of calls.
  constexpr int kMaxDepth = 100;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    torch::jit::Inline(*graph);
    torch::jit::InlineForkWait(graph);
    if (!HasCalls(graph->block())) {
      break;
    }
  }
  return graph;
}

std::vector<Node*> AllNodes(torch::jit::Graph* graph) {
  std::vector<Node*> nodes;
  CollectNodes(graph->block(), &nodes);
  return nodes;
}

}  // namespace braid
