#include "server/models/torchscript/module_state.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/models/torchscript/attribute_flow.h"
#include "server/models/torchscript/inlined_forward.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/passes/constant_propagation.h"

namespace braid {
namespace {

using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;
namespace aten = torch::jit::aten;
namespace prim = torch::jit::prim;

// Leaves out what only runs in training mode.
void KeepEvaluation(std::shared_ptr<Graph> graph) {
  for (Node* node : AllNodes(graph.get())) {
    if (node->kind() == prim::GetAttr && IsOfModule(*node) &&
        node->s(c10::attr::name) == "training" &&
        node->output()->type()->kind() == c10::TypeKind::BoolType) {
      const torch::jit::WithInsertPoint here(node);
      node->output()->replaceAllUsesWith(graph->insertConstant(false));
    }
  }
  torch::jit::ConstantPropagationImmutableTypes(graph);
}

bool IsFalse(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  return constant && constant->isBool() && !constant->toBool();
}

// Batch norm in training mode writes to its running statistics, of which its schema says nothing.
bool UpdatesStatistics(const Node& node, const c10::Argument& argument) {
  const bool normalizes = node.kind() == aten::batch_norm || node.kind() == aten::instance_norm;
  constexpr size_t kTraining = 5;  // use_input_stats of instance_norm
  return normalizes && (argument.name() == "running_mean" || argument.name() == "running_var") &&
         !IsFalse(node.input(kTraining));
}

std::vector<const Value*> WrittenTo(const Node& node) {
  if (node.kind() == prim::SetAttr) {
    return {node.input(0)};
  }
  std::vector<const Value*> written;
  if (const c10::FunctionSchema* schema = node.maybeSchema()) {
    const size_t arguments = std::min(schema->arguments().size(), node.inputs().size());
    for (size_t i = 0; i < arguments; ++i) {
      const c10::Argument& argument = schema->arguments()[i];
      if ((argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
          UpdatesStatistics(node, argument)) {
        written.push_back(node.input(i));
      }
    }
  }
  return written;
}

// A module in another, by its path.
struct Owner {
  std::string prefix;  // "encoder."
  std::optional<Module> module;
};

Owner OwnerOf(const Value* value, const Module& root) {
  const Node* node = value->node();
  if (node->kind() != prim::GetAttr) {
    // The argument of forward; else one that is chosen as it runs.
    return value == value->owningGraph()->inputs()[0] ? Owner{"", root} : Owner{"", std::nullopt};
  }
  const Owner outer = OwnerOf(node->input(), root);
  const std::string& name = node->s(c10::attr::name);
  Owner owner{absl::StrCat(outer.prefix, name, "."), std::nullopt};
  if (outer.module && outer.module->attr(name).isModule()) {
    owner.module = outer.module->attr(name).toModule();
  }
  return owner;
}

// Of the attribute that `node` gets or sets.
StateChange ChangeOf(const Node& node, const Module& root, std::string how) {
  const Owner owner = OwnerOf(node.input(0), root);
  const std::string& name = node.s(c10::attr::name);
  const c10::ClassType& type = *node.input(0)->type()->expect<c10::ClassType>();
  const size_t slot = type.getAttributeSlot(name);
  StateChange change{absl::StrCat(owner.prefix, name), StateChange::Kind::kOther, std::move(how)};
  if (type.is_parameter(slot)) {
    change.kind = StateChange::Kind::kParameter;
  } else if (type.is_buffer(slot) && owner.module && owner.module->attr(name).isTensor()) {
    change.kind = StateChange::Kind::kBuffer;
  }
  return change;
}

std::vector<StateChange> ChangesIn(const std::vector<Node*>& nodes, const Module& module) {
  std::vector<StateChange> changes;
  for (const Node* node : nodes) {
    if (node->kind() == prim::SetAttr && IsOfModule(*node)) {
      changes.push_back(ChangeOf(*node, module, "assigns"));
      continue;
    }
    for (const Value* written : WrittenTo(*node)) {
      for (const Node* attribute : AttributesBehind(written)) {
        changes.push_back(
            ChangeOf(*attribute, module,
                     absl::StrCat("changes in place (", node->kind().toQualString(), ")")));
      }
    }
  }
  return changes;
}

// The nodes belong to it.
std::shared_ptr<Graph> GraphOf(const Module& module, Reach reach) {
  std::shared_ptr<Graph> graph = InlinedForward(module);
  if (reach == Reach::kEvaluation) {
    KeepEvaluation(graph);
  }
  return graph;
}

}  // namespace

std::vector<StateChange> FindStateChanges(const Module& module, Reach reach) {
  const std::shared_ptr<Graph> graph = GraphOf(module, reach);
  return ChangesIn(AllNodes(graph.get()), module);
}

bool MayChangeStateInEval(const Module& module) {
  const std::shared_ptr<Graph> graph = GraphOf(module, Reach::kEvaluation);
  const std::vector<Node*> nodes = AllNodes(graph.get());
  // A call that is left could not be inlined: its callee is an interface's, or a C++ class's.
  const bool unseen = std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return node->kind() == prim::CallMethod || node->kind() == prim::CallFunction;
  });
  return unseen || !ChangesIn(nodes, module).empty();
}

std::string Describe(const StateChange& change) {
  return absl::StrCat(change.how, " '", change.attribute, "', ",
                      change.kind == StateChange::Kind::kParameter ? "a parameter"
                      : change.kind == StateChange::Kind::kBuffer  ? "a buffer"
                                                                   : "which is no buffer");
}

absl::Status CheckOnlyBuffersChange(const Module& module) {
  for (const StateChange& change : FindStateChanges(module, Reach::kBothModes)) {
    if (change.kind == StateChange::Kind::kParameter) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the model's forward ", Describe(change),
          ", which only the optimizer may change; expected it to be a buffer, or a copy to be "
          "changed"));
    }
    if (change.kind == StateChange::Kind::kOther) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the model's forward ", Describe(change),
          ": it would be neither saved, nor put back after a failure, nor kept alike on replicas; "
          "expected a tensor that is registered with register_buffer(), or a local variable"));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
