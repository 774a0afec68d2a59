#include "server/models/torchscript/batch_size_check.h"

#include "absl/strings/match.h"
#include "torch/csrc/jit/api/function_impl.h"

namespace braid {
namespace {

// Loading a module may add a number to the name of the Python module.
bool IsBatchSizeCheck(const c10::QualifiedName& name) {
  return name.name() == "_verify_batch_size" &&
         absl::StartsWith(name.prefix(), "__torch__.torch.nn.functional");
}

void ReplaceByReturnNone(torch::jit::Graph& graph) {
  graph.block()->removeAllOutputs();
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    node.destroyCurrent();
  }
  graph.registerOutput(graph.insertConstant(c10::IValue()));
}

}  // namespace

void RemoveBatchSizeChecks(const torch::jit::Module& module) {
  for (torch::jit::Function* function : module._ivalue()->compilation_unit()->get_functions()) {
    if (IsBatchSizeCheck(function->qualname())) {
      function->ensure_defined();
      ReplaceByReturnNone(*torch::jit::toGraphFunction(*function).graph());
    }
  }
}

}  // namespace braid
