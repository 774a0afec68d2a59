#include "server/models/torchscript/argument_tensors.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "torch/csrc/jit/ir/constants.h"

namespace braid {
namespace {

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

}  // namespace

torch::jit::AliasDb AliasesIn(const std::shared_ptr<torch::jit::Graph>& graph) {
  return torch::jit::AliasDb(graph, /*isFrozen=*/true);
}

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

// `value` is what `plan` is of.
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
    const torch::jit::use_list uses = value->uses();
    for (const torch::jit::Use& use : uses) {
      SeparateFrom(use, *plan);
    }
  }
}

// What the node at `use` takes out of `whole`.
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

}  // namespace braid
