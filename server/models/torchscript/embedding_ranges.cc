#include "server/models/torchscript/embedding_ranges.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "server/models/torchscript/argument_tensors.h"
#include "server/models/torchscript/attribute_flow.h"
#include "server/models/torchscript/inlined_forward.h"
#include "torch/csrc/jit/ir/alias_analysis.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

// Whether `node` makes its input a type that cannot hold each index, such as bool.
bool Narrows(const Node* node) {
  const auto type =
      node->hasNamedInput("dtype") ? torch::jit::toIValue(node->namedInput("dtype")) : std::nullopt;
  return type && type->isInt() && type->toInt() != static_cast<int64_t>(at::kInt) &&
         type->toInt() != static_cast<int64_t>(at::kLong);
}

// Whether `node` gives all values of its first input and no others. Not one that takes a part of
// it: what is true of the part need not be of the rest.
bool KeepsValues(const Node* node) {
  static const auto* const kKinds = new std::set<std::string>(
      {"aten::to",         "aten::long",      "aten::int",           "aten::type_as",
       "aten::contiguous", "aten::view",      "aten::reshape",       "aten::flatten",
       "aten::clone",      "aten::detach",    "aten::unsqueeze",     "aten::squeeze",
       "aten::t",          "aten::transpose", "aten::permute",       "aten::expand",
       "aten::view_as",    "aten::alias",     "aten::unflatten",     "aten::ravel",
       "aten::numpy_T",    "aten::expand_as", "prim::unchecked_cast"});
  return kKinds->contains(node->kind().toQualString()) && !node->inputs().empty() && !Narrows(node);
}

// Where in the module or the arguments a value is from.
class Origins {
 public:
  Origins(const torch::jit::Module& module, const std::shared_ptr<Graph>& graph,
          const std::vector<ArgumentPlan>& arguments)
      : module_(module), tensors_(graph, arguments), aliases_(AliasesIn(graph)) {}

  // The tensor of the arguments whose values `value` has. Null if there is none, or if anything
  // that holds them on the way is written to, wherever that is.
  const ArgumentPlan* PlanOf(const Value* value) const {
    if (aliases_.hasWriters(value)) {
      return nullptr;
    }
    if (const ArgumentPlan* plan = tensors_.At(value)) {
      return plan;
    }
    const Node* node = value->node();
    if (node->kind() == torch::jit::prim::If) {
      const Value* then = node->blocks()[0]->outputs()[value->offset()];
      const Value* other = node->blocks()[1]->outputs()[value->offset()];
      // functional.embedding_bag swaps the two if the index is none.
      if (IsWeight(then) || IsWeight(other)) {
        return PlanOf(IsWeight(then) ? other : then);
      }
      const ArgumentPlan* plan = PlanOf(then);
      return plan == PlanOf(other) ? plan : nullptr;
    }
    return KeepsValues(node) ? PlanOf(node->inputs()[0]) : nullptr;
  }

 private:
  bool IsWeight(const Value* value) const {
    const std::optional<c10::IValue> attribute = AttributeOf(value, module_);
    return attribute && attribute->isTensor() && attribute->toTensor().is_floating_point();
  }

  const torch::jit::Module& module_;
  const ArgumentTensors tensors_;
  const torch::jit::AliasDb aliases_;  // with the tensors in their places
};

bool IsInteger(DataType type) { return !IsFloatingPoint(type) && type != DataType::kBool; }

}  // namespace

void FindRanges(const torch::jit::Module& module, const std::vector<ArgumentPlan>& arguments,
                std::vector<TensorSpec>* inputs) {
  const auto graph = InlinedForward(module);
  const Origins origins(module, graph, arguments);
  std::vector<std::optional<ValueRange>> found(inputs->size());
  // Not what is in the branches of the program, which may be there for inputs of another kind.
  for (const Node* node : graph->nodes()) {
    if (node->kind() != torch::jit::aten::embedding &&
        node->kind() != torch::jit::aten::embedding_bag) {
      continue;
    }
    const ArgumentPlan* plan = origins.PlanOf(node->inputs()[1]);
    const std::optional<c10::IValue> weight = AttributeOf(node->inputs()[0], module);
    if (plan == nullptr || !weight || !weight->isTensor() || weight->toTensor().dim() == 0) {
      continue;
    }
    const int64_t last = weight->toTensor().size(0) - 1;
    const int64_t before = found[plan->input] ? found[plan->input]->max : last;
    found[plan->input] = ValueRange{0, std::min(last, before)};
  }
  for (size_t i = 0; i < inputs->size(); ++i) {
    TensorSpec& input = (*inputs)[i];
    if (found[i] && !input.range && IsInteger(input.type)) {
      input.range = found[i];
      input.range_found = true;
    }
  }
}

}  // namespace braid
