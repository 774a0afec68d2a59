#include "server/models/torchscript/attribute_flow.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_set>
#include <utility>

#include "ATen/core/function_schema.h"
#include "torch/csrc/jit/ir/constants.h"

namespace braid {
namespace {

using c10::AliasInfo;
using c10::TypeKind;
using c10::TypePtr;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

// Path into nested containers: element indices of tuples, kAny for other containers.
using Path = std::vector<int64_t>;
constexpr int64_t kAny = -1;
// Maximum length of a path. Only recursive classes are deeper.
constexpr size_t kMaxDepth = 8;

// The element at a path in a value.
using Place = std::pair<const Value*, Path>;

// Returns the path of the element at `path` after its value was put into a container at `element`.
Path Into(int64_t element, const Path& path) {
  Path longer = {element};
  longer.insert(longer.end(), path.begin(), path.end());
  longer.resize(std::min(longer.size(), kMaxDepth));
  return longer;
}

Path OutOf(const Path& path) { return {path.begin() + 1, path.end()}; }

bool AnyHolds(at::ArrayRef<TypePtr> types, size_t depth);

// True if a value of `type` can contain a mutable value at nesting level `depth`.
bool CanHold(const TypePtr& type, size_t depth) {
  switch (type->kind()) {
    case TypeKind::AnyType:
      return true;
    case TypeKind::TensorType:
      return depth == 0;
    case TypeKind::ListType:
    case TypeKind::DictType:
    case TypeKind::ClassType:
    case TypeKind::TupleType:
      return depth == 0 || AnyHolds(type->containedTypes(), depth - 1);
    case TypeKind::OptionalType:
    case TypeKind::UnionType:
      return AnyHolds(type->containedTypes(), depth);
    default:
      return false;
  }
}

bool AnyHolds(at::ArrayRef<TypePtr> types, size_t depth) {
  return std::any_of(types.begin(), types.end(),
                     [&](const TypePtr& type) { return CanHold(type, depth); });
}

bool Meet(const std::unordered_set<c10::Symbol>& a, const std::unordered_set<c10::Symbol>& b) {
  return std::any_of(a.begin(), a.end(), [&](c10::Symbol set) { return b.contains(set); });
}

// Backward search through the graph from one value.
class Search {
 public:
  std::vector<const Node*> Run(const Value* value) {
    open_.emplace_back(value, Path());
    std::vector<const Node*> found;
    while (!open_.empty()) {
      const Place place = std::move(open_.back());
      open_.pop_back();
      const auto& [at, path] = place;
      if (!CanHold(at->type(), path.size()) || !seen_.insert(place).second) {
        continue;
      }
      if (at->node()->kind() == prim::GetAttr && IsOfModule(*at->node())) {
        if (std::find(found.begin(), found.end(), at->node()) == found.end()) {
          found.push_back(at->node());
        }
      } else {
        StepBack(*at, path);
      }
    }
    return found;
  }

 private:
  void StepBack(const Value& value, const Path& path) {
    const Node& node = *value.node();
    const size_t offset = value.offset();
    switch (node.kind()) {
      case prim::Param:
        return EnterFromLoop(*node.owningBlock(), offset, path);
      case prim::If:
        open_.emplace_back(node.blocks()[0]->outputs()[offset], path);
        open_.emplace_back(node.blocks()[1]->outputs()[offset], path);
        return;
      case prim::Loop:
        open_.emplace_back(node.input(offset + 2), path);
        open_.emplace_back(node.blocks()[0]->outputs()[offset + 1], path);
        return;
      case prim::unchecked_cast:
      case prim::unchecked_unwrap_optional:
        open_.emplace_back(node.input(0), path);
        return;
      case prim::TupleUnpack:
        open_.emplace_back(node.input(0), Into(static_cast<int64_t>(offset), path));
        return;
      case prim::TupleIndex:
        open_.emplace_back(node.input(0), Into(IndexOf(node), path));
        return;
      case prim::ListUnpack:
      case prim::GetAttr:  // of an object that is not a module
        open_.emplace_back(node.input(0), Into(kAny, path));
        return;
      case prim::TupleConstruct:
      case prim::ListConstruct:
      case prim::DictConstruct:
      case prim::CreateObject:
        return IntoContainer(value, path);
      default:
        return ThroughOperator(node, offset, path);
    }
  }

  void EnterFromLoop(const torch::jit::Block& block, size_t offset, const Path& path) {
    const Node* loop = block.owningNode();
    if (loop != nullptr && loop->kind() == prim::Loop && offset > 0) {
      open_.emplace_back(loop->input(offset + 1), path);
      open_.emplace_back(block.outputs()[offset], path);
    }
  }

  static int64_t IndexOf(const Node& node) {
    const auto index = torch::jit::toIValue(node.input(1));
    const auto size = static_cast<int64_t>(node.input(0)->type()->containedTypes().size());
    return !index ? kAny : index->toInt() < 0 ? index->toInt() + size : index->toInt();
  }

  // Continues at the values that a new container was created with, and at those inserted later.
  void IntoContainer(const Value& made, const Path& path) {
    if (path.empty()) {
      return;  // The container itself is new.
    }
    const Node& node = *made.node();
    if (node.kind() == prim::TupleConstruct && path[0] != kAny) {
      open_.emplace_back(node.input(static_cast<size_t>(path[0])), OutOf(path));
      return;
    }
    for (const Value* part : node.inputs()) {
      open_.emplace_back(part, OutOf(path));
    }
    for (const torch::jit::Use& use : made.uses()) {
      const c10::FunctionSchema* schema = use.user->maybeSchema();
      const bool inserts = use.user->kind() == prim::SetAttr ||
                           (schema != nullptr && use.offset < schema->arguments().size() &&
                            schema->arguments()[use.offset].alias_info() != nullptr &&
                            schema->arguments()[use.offset].alias_info()->isWrite());
      for (size_t i = 0; inserts && i < use.user->inputs().size(); ++i) {
        if (i != use.offset) {
          open_.emplace_back(use.user->input(i), OutOf(path));
          open_.emplace_back(use.user->input(i), path);  // list.extend()
        }
      }
    }
  }

  // Continues at the arguments that the output may alias, by the operator's schema.
  void ThroughOperator(const Node& node, size_t offset, const Path& path) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (schema == nullptr || offset >= schema->returns().size()) {
      return;
    }
    const AliasInfo* output = schema->returns()[offset].alias_info();
    const size_t arguments = std::min(schema->arguments().size(), node.inputs().size());
    for (size_t i = 0; i < arguments; ++i) {
      const Value* input = node.input(i);
      const AliasInfo* argument = schema->arguments()[i].alias_info();
      if (output == nullptr || output->isWildcardAfter()) {
        ThroughContainer(input, output != nullptr, path);
      } else if (argument != nullptr) {
        ThroughView(input, *argument, *output, path);
      }
    }
  }

  void ThroughView(const Value* input, const AliasInfo& argument, const AliasInfo& output,
                   const Path& path) {
    if (Meet(output.beforeSets(), argument.beforeSets())) {
      open_.emplace_back(input, path);
    }
    for (const AliasInfo& element : output.containedTypes()) {
      if (!path.empty() && Meet(element.beforeSets(), argument.beforeSets())) {
        open_.emplace_back(input, OutOf(path));  // split and unbind return lists of views
      }
    }
  }

  // Handles an output that is an element of the container `input`, or has elements of it.
  void ThroughContainer(const Value* input, bool element, const Path& path) {
    const TypeKind kind = input->type()->kind();
    if (kind != TypeKind::ListType && kind != TypeKind::DictType && kind != TypeKind::TupleType) {
      return;
    }
    if (element) {
      open_.emplace_back(input, Into(kAny, path));
    }
    if (!path.empty()) {
      open_.emplace_back(input, path);
    }
    if (path.size() > 1) {
      open_.emplace_back(input, OutOf(path));  // dict.items() returns tuples
    }
  }

  std::vector<Place> open_;
  std::set<Place> seen_;
};

}  // namespace

bool IsOfModule(const Node& node) {
  const auto owner = node.input(0)->type()->cast<c10::ClassType>();
  return owner && owner->is_module();
}

std::vector<const Node*> AttributesBehind(const Value* value) { return Search().Run(value); }

std::optional<c10::IValue> AttributeOf(const Value* value, const torch::jit::Module& module) {
  const Node* node = value->node();
  if (node->kind() == prim::Param) {
    const bool is_module = value == value->owningGraph()->inputs()[0];
    return is_module ? std::optional<c10::IValue>(module._ivalue()) : std::nullopt;
  }
  if (node->kind() == prim::If) {
    const auto then = AttributeOf(node->blocks()[0]->outputs()[value->offset()], module);
    const auto other = AttributeOf(node->blocks()[1]->outputs()[value->offset()], module);
    return then && other ? std::nullopt : then ? then : other;
  }
  if (node->kind() != prim::GetAttr) {
    return torch::jit::toIValue(value);
  }
  const std::optional<c10::IValue> owner = AttributeOf(node->input(), module);
  if (!owner || !owner->isObject()) {
    return std::nullopt;
  }
  return owner->toObjectRef().getAttr(node->s(torch::jit::attr::name));
}

}  // namespace braid
