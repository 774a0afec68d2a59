#include "server/models/embedding_ranges.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "torch/csrc/jit/api/function_impl.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/ir/ir.h"
#include "torch/csrc/jit/passes/inliner.h"

namespace braid {
namespace {

using torch::jit::Node;
using torch::jit::Value;

// Give values of their first input and no others.
const std::set<std::string>& KeepValues() {
  static const auto* const kKinds = new std::set<std::string>(
      {"aten::to",        "aten::long",           "aten::int",
       "aten::type_as",   "aten::contiguous",     "aten::view",
       "aten::reshape",   "aten::flatten",        "aten::clone",
       "aten::detach",    "aten::unsqueeze",      "aten::squeeze",
       "aten::t",         "aten::select",         "aten::transpose",
       "aten::permute",   "aten::slice",          "aten::expand",
       "aten::narrow",    "aten::view_as",        "aten::alias",
       "aten::unflatten", "aten::ravel",          "aten::numpy_T",
       "aten::expand_as", "prim::unchecked_cast", "aten::__getitem__.Tensor"});
  return *kKinds;
}

// Where in the arguments a value is from.
class Origins {
 public:
  Origins(const torch::jit::Module& module, const torch::jit::Graph& graph,
          const std::vector<ArgumentPlan>& arguments)
      : module_(module), graph_(graph), arguments_(arguments) {}

  // The part of the arguments whose values `value` has.
  const ArgumentPlan* PlanOf(const Value* value) const {
    for (size_t a = 1; a < graph_.inputs().size(); ++a) {
      if (graph_.inputs()[a] == value) {
        return &arguments_[a - 1];
      }
    }
    const Node* node = value->node();
    const std::string kind = node->kind().toQualString();
    if (kind == "prim::If") {
      const Value* then = node->blocks()[0]->outputs()[value->offset()];
      const Value* other = node->blocks()[1]->outputs()[value->offset()];
      // functional.embedding_bag swaps the two if the index is none.
      if (IsWeight(then) || IsWeight(other)) {
        return PlanOf(IsWeight(then) ? other : then);
      }
      const ArgumentPlan* plan = PlanOf(then);
      return plan == PlanOf(other) ? plan : nullptr;
    }
    if (kind == "prim::TupleUnpack" || kind == "prim::ListUnpack") {
      const ArgumentPlan* whole = PlanOf(node->input());
      return whole == nullptr ? nullptr : PartAt(*whole, static_cast<int64_t>(value->offset()));
    }
    if (kind == "prim::TupleIndex" || kind == "aten::__getitem__") {
      const ArgumentPlan* whole = PlanOf(node->inputs()[0]);
      const auto key = torch::jit::toIValue(node->inputs()[1]);
      return whole == nullptr || !key ? nullptr : PartFor(*whole, *key);
    }
    return KeepValues().contains(kind) && !node->inputs().empty() ? PlanOf(node->inputs()[0])
                                                                  : nullptr;
  }

  // The attribute of the module that `value` is.
  std::optional<c10::IValue> AttributeOf(const Value* value) const {
    if (value == graph_.inputs()[0]) {
      return module_._ivalue();
    }
    const Node* node = value->node();
    if (node->kind() == torch::jit::prim::If) {
      const auto then = AttributeOf(node->blocks()[0]->outputs()[value->offset()]);
      const auto other = AttributeOf(node->blocks()[1]->outputs()[value->offset()]);
      return then && other ? std::nullopt : then ? then : other;
    }
    if (node->kind() != torch::jit::prim::GetAttr) {
      return torch::jit::toIValue(value);
    }
    const std::optional<c10::IValue> owner = AttributeOf(node->input());
    if (!owner || !owner->isObject()) {
      return std::nullopt;
    }
    return owner->toObjectRef().getAttr(node->s(torch::jit::attr::name));
  }

 private:
  bool IsWeight(const Value* value) const {
    const std::optional<c10::IValue> attribute = AttributeOf(value);
    return attribute && attribute->isTensor() && attribute->toTensor().is_floating_point();
  }
  static const ArgumentPlan* PartAt(const ArgumentPlan& whole, int64_t index) {
    const auto count = static_cast<int64_t>(whole.parts.size());
    const int64_t place = index < 0 ? index + count : index;
    return place >= 0 && place < count ? &whole.parts[static_cast<size_t>(place)] : nullptr;
  }
  static const ArgumentPlan* PartFor(const ArgumentPlan& whole, const c10::IValue& key) {
    if (key.isInt()) {
      return PartAt(whole, key.toInt());
    }
    const auto found = key.isString()
                           ? std::find(whole.keys.begin(), whole.keys.end(), key.toStringRef())
                           : whole.keys.end();
    return found == whole.keys.end() ? nullptr
                                     : PartAt(whole, std::distance(whole.keys.begin(), found));
  }

  const torch::jit::Module& module_;
  const torch::jit::Graph& graph_;
  const std::vector<ArgumentPlan>& arguments_;
};

bool IsCall(const Node* node) {
  return node->kind() == torch::jit::prim::CallMethod ||
         node->kind() == torch::jit::prim::CallFunction;
}

// Without the optimizer, as on workers, each round inlines one level of calls.
void InlineAll(torch::jit::Graph& graph) {
  constexpr int kDeepest = 100;
  for (int depth = 0; depth < kDeepest; ++depth) {
    torch::jit::Inline(graph);
    const auto nodes = graph.nodes();
    if (std::none_of(nodes.begin(), nodes.end(), IsCall)) {
      return;
    }
  }
}

bool IsInteger(DataType type) { return !IsFloatingPoint(type) && type != DataType::kBool; }

}  // namespace

void FindRanges(const torch::jit::Module& module, const std::vector<ArgumentPlan>& arguments,
                std::vector<TensorSpec>* inputs) {
  const auto graph =
      torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  InlineAll(*graph);
  const Origins origins(module, *graph, arguments);
  std::vector<std::optional<ValueRange>> found(inputs->size());
  // Not what is in the branches of the program, which may be there for inputs of another kind.
  for (const Node* node : graph->nodes()) {
    if (node->kind() != torch::jit::aten::embedding &&
        node->kind() != torch::jit::aten::embedding_bag) {
      continue;
    }
    const ArgumentPlan* plan = origins.PlanOf(node->inputs()[1]);
    const std::optional<c10::IValue> weight = origins.AttributeOf(node->inputs()[0]);
    if (plan == nullptr || plan->kind != ArgumentPlan::Kind::kTensor || !weight ||
        !weight->isTensor() || weight->toTensor().dim() == 0) {
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
    }
  }
}

}  // namespace braid
