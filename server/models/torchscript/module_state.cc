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

// Removes code that runs only in training mode.
void RemoveTrainingCode(std::shared_ptr<Graph> graph) {
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

// True if a batch norm in training mode updates `argument`, a running statistic. Its schema does
// not declare the mutation.
bool UpdatesStatistics(const Node& node, const c10::Argument& argument) {
  const bool normalizes = node.kind() == aten::batch_norm || node.kind() == aten::instance_norm;
  constexpr size_t kTraining = 5;  // use_input_stats of instance_norm
  return normalizes && (argument.name() == "running_mean" || argument.name() == "running_var") &&
         !IsFalse(node.input(kTraining));
}

std::vector<const Value*> MutatedValues(const Node& node) {
  if (node.kind() == prim::SetAttr) {
    return {node.input(0)};
  }
  std::vector<const Value*> mutated;
  if (const c10::FunctionSchema* schema = node.maybeSchema()) {
    const size_t arguments = std::min(schema->arguments().size(), node.inputs().size());
    for (size_t i = 0; i < arguments; ++i) {
      const c10::Argument& argument = schema->arguments()[i];
      if ((argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
          UpdatesStatistics(node, argument)) {
        mutated.push_back(node.input(i));
      }
    }
  }
  return mutated;
}

// Submodule and its path.
struct Owner {
  std::string prefix;  // "encoder."
  std::optional<Module> module;
};

Owner OwnerOf(const Value* value, const Module& root) {
  const Node* node = value->node();
  if (node->kind() != prim::GetAttr) {
    // The self argument of forward(), or a module that is chosen at run time.
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

// Describes a change of the attribute that `node` gets or sets.
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
    for (const Value* mutated : MutatedValues(*node)) {
      for (const Node* attribute : AttributesBehind(mutated)) {
        changes.push_back(
            ChangeOf(*attribute, module,
                     absl::StrCat("changes in place (", node->kind().toQualString(), ")")));
      }
    }
  }
  return changes;
}

std::shared_ptr<Graph> GraphFor(const Module& module, Modes modes) {
  std::shared_ptr<Graph> graph = InlinedForward(module);
  if (modes == Modes::kEval) {
    RemoveTrainingCode(graph);
  }
  return graph;
}

}  // namespace

std::vector<StateChange> FindStateChanges(const Module& module, Modes modes) {
  const std::shared_ptr<Graph> graph = GraphFor(module, modes);
  return ChangesIn(AllNodes(graph.get()), module);
}

bool MayChangeStateInEval(const Module& module) {
  const std::shared_ptr<Graph> graph = GraphFor(module, Modes::kEval);
  const std::vector<Node*> nodes = AllNodes(graph.get());
  // Calls that could not be inlined are methods of interfaces and C++ classes.
  const bool unknown = std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return node->kind() == prim::CallMethod || node->kind() == prim::CallFunction;
  });
  return unknown || !ChangesIn(nodes, module).empty();
}

std::string Describe(const StateChange& change) {
  return absl::StrCat(change.how, " '", change.attribute, "', ",
                      change.kind == StateChange::Kind::kParameter ? "a parameter"
                      : change.kind == StateChange::Kind::kBuffer  ? "a buffer"
                                                                   : "which is not a buffer");
}

absl::Status CheckOnlyBuffersChange(const Module& module) {
  for (const StateChange& change : FindStateChanges(module, Modes::kTrainAndEval)) {
    if (change.kind == StateChange::Kind::kParameter) {
      return absl::FailedPreconditionError(absl::StrCat(
          "forward() ", Describe(change),
          ", which only the optimizer may change (expected a buffer, or a change of a copy)"));
    }
    if (change.kind == StateChange::Kind::kOther) {
      return absl::FailedPreconditionError(absl::StrCat(
          "forward() ", Describe(change),
          ": it would not be saved, restored or synchronized between replicas (expected a tensor "
          "that is registered with register_buffer(), or a local variable)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
