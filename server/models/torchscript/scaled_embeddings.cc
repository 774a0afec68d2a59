#include "server/models/torchscript/scaled_embeddings.h"

#include <memory>
#include <optional>

#include "server/models/torchscript/attribute_flow.h"
#include "server/models/torchscript/inlined_forward.h"

namespace braid {
namespace {

using torch::jit::Node;
using torch::jit::Value;

constexpr char kFlag[] = "scale_grad_by_freq";
constexpr char kWeight[] = "weight";

bool MayScale(const Node* node, const torch::jit::Module& module) {
  if (node->maybeSchema() == nullptr || !node->hasNamedInput(kFlag) ||
      !node->hasNamedInput(kWeight)) {
    return false;
  }
  const std::optional<c10::IValue> flag = AttributeOf(node->namedInput(kFlag), module);
  return !flag || !flag->isBool() || flag->toBool();
}

}  // namespace

std::vector<at::Tensor> WeightsScaledByFrequency(const torch::jit::Module& module) {
  const std::shared_ptr<torch::jit::Graph> graph = InlinedForward(module);
  std::vector<at::Tensor> weights;
  for (const Node* node : AllNodes(graph.get())) {
    if (MayScale(node, module)) {
      const std::optional<c10::IValue> weight = AttributeOf(node->namedInput(kWeight), module);
      weights.push_back(weight && weight->isTensor() ? weight->toTensor() : at::Tensor());
    }
  }
  return weights;
}

}  // namespace braid
