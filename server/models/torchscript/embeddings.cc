#include "server/models/torchscript/embeddings.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/models/torchscript/argument_plan.h"
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

const ArgumentPlan* PartAt(const ArgumentPlan& whole, int64_t index) {
  const auto count = static_cast<int64_t>(whole.parts.size());
  const int64_t place = index < 0 ? index + count : index;
  return place >= 0 && place < count ? &whole.parts[static_cast<size_t>(place)] : nullptr;
}

const ArgumentPlan* PartFor(const ArgumentPlan& whole, const c10::IValue& key) {
  if (key.isInt()) {
    return PartAt(whole, key.toInt());
  }
  const auto found = key.isString()
                         ? std::find(whole.keys.begin(), whole.keys.end(), key.toStringRef())
                         : whole.keys.end();
  return found == whole.keys.end() ? nullptr
                                   : PartAt(whole, std::distance(whole.keys.begin(), found));
}

// Analyses which values share memory and which are modified. Treats attributes as created by the
// call, so that they never alias a request's tensors.
torch::jit::AliasDb AliasesIn(const std::shared_ptr<torch::jit::Graph>& graph) {
  return torch::jit::AliasDb(graph, /*isFrozen=*/true);
}

// Gives each tensor of a graph's arguments its own value in the graph, because AliasDb assumes that
// arguments and their elements may alias each other. Elements of modified lists and dicts are not
// changed.
class ArgumentTensors {
 public:
  // arguments: plans of the graph's arguments, without self. They must outlive this object.
  ArgumentTensors(const std::shared_ptr<torch::jit::Graph>& graph,
                  const std::vector<ArgumentPlan>& arguments);

  // Returns the plan of `value`; nullptr if it is not a tensor of the arguments.
  const ArgumentPlan* At(const torch::jit::Value* value) const;

 private:
  void Separate(torch::jit::Value* value, const ArgumentPlan* plan);
  void SeparateFrom(const torch::jit::Use& use, const ArgumentPlan& whole);

  torch::jit::Graph& graph_;
  const torch::jit::AliasDb aliases_;  // of the original graph
  std::map<const ArgumentPlan*, torch::jit::Value*> values_;
  std::map<const torch::jit::Value*, const ArgumentPlan*> plans_;
};

ArgumentTensors::ArgumentTensors(const std::shared_ptr<torch::jit::Graph>& graph,
                                 const std::vector<ArgumentPlan>& arguments)
    : graph_(*graph), aliases_(AliasesIn(graph)) {
  for (size_t a = 0; a < arguments.size(); ++a) {
    Separate(graph_.inputs()[a + 1], &arguments[a]);
  }
}

const ArgumentPlan* ArgumentTensors::At(const Value* value) const {
  const auto found = plans_.find(value);
  return found == plans_.end() ? nullptr : found->second;
}

// Replaces the tensors of `value`, whose plan is `plan`.
void ArgumentTensors::Separate(Value* value, const ArgumentPlan* plan) {
  if (plan == nullptr) {
    return;
  }
  if (plan->kind == ArgumentPlan::Kind::kTensor) {
    Value*& own = values_[plan];
    if (own == nullptr) {
      const torch::jit::WithInsertPoint start(*graph_.nodes().begin());
      own = graph_.insert(torch::jit::aten::empty, {std::vector<int64_t>{}});
      plans_[own] = plan;
    }
    value->replaceAllUsesWith(own);
  } else if (!aliases_.hasWriters(value)) {
    for (const torch::jit::Use& use : value->uses()) {
      SeparateFrom(use, *plan);
    }
  }
}

// Replaces the tensors that the node at `use` takes out of a value with plan `whole`.
void ArgumentTensors::SeparateFrom(const torch::jit::Use& use, const ArgumentPlan& whole) {
  Node* node = use.user;
  const std::string kind = node->kind().toQualString();
  if (kind == "prim::unchecked_cast") {
    Separate(node->output(), &whole);
  } else if (kind == "prim::TupleUnpack" || kind == "prim::ListUnpack") {
    for (Value* output : node->outputs()) {
      Separate(output, PartAt(whole, static_cast<int64_t>(output->offset())));
    }
  } else if ((kind == "prim::TupleIndex" || kind == "aten::__getitem__") && use.offset == 0) {
    if (const auto key = torch::jit::toIValue(node->inputs()[1])) {
      Separate(node->output(), PartFor(whole, *key));
    }
  }
}

// True if `node` converts its input to a type that cannot represent all indices, such as bool.
bool Narrows(const Node* node) {
  const auto type =
      node->hasNamedInput("dtype") ? torch::jit::toIValue(node->namedInput("dtype")) : std::nullopt;
  return type && type->isInt() && type->toInt() != static_cast<int64_t>(at::kInt) &&
         type->toInt() != static_cast<int64_t>(at::kLong);
}

// True if the result of `node` has exactly the values of its first input. False for slices: a range
// of a slice need not be a range of the whole tensor.
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

// Traces values back to arguments and attributes of the module.
class Origins {
 public:
  Origins(const torch::jit::Module& module, const std::shared_ptr<Graph>& graph,
          const std::vector<ArgumentPlan>& arguments)
      : module_(module), tensors_(graph, arguments), aliases_(AliasesIn(graph)) {}

  // Returns the plan of the argument tensor with the values of `value`; nullptr if there is none,
  // or if any value in between is modified anywhere.
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
      // functional.embedding_bag swaps weight and indices if they are in the old order.
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
  const torch::jit::AliasDb aliases_;  // after `tensors_` has changed the graph
};

bool IsInteger(DataType type) { return !IsFloatingPoint(type) && type != DataType::kBool; }

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

void FindEmbeddingRanges(const torch::jit::Module& module,
                         const std::vector<ArgumentPlan>& arguments,
                         std::vector<TensorSpec>* inputs) {
  const auto graph = InlinedForward(module);
  const Origins origins(module, graph, arguments);
  std::vector<std::optional<ValueRange>> found(inputs->size());
  // Skips branches: they may be for other kinds of inputs.
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
      input.range_derived = true;
    }
  }
}

std::vector<at::Tensor> FrequencyScaledWeights(const torch::jit::Module& module) {
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
