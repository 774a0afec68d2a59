#include "server/models/torchscript/recorded_example.h"

#include <utility>

#include "ATen/core/jit_type.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/models/torchscript/torchscript_inputs.h"

namespace braid {
namespace {

using torch::jit::Module;

// What torch.utils.bundled_inputs adds to a module.
constexpr char kExampleMethod[] = "get_all_bundled_inputs";

bool IsScalar(const c10::IValue& value) {
  return value.isInt() || value.isBool() || value.isDouble();
}

// The tensors of `value`, an argument of `type` at `path`, or a part of one.
absl::StatusOr<std::vector<ExampleLeaf>> ExampleLeaves(const c10::TypePtr& type,
                                                       const c10::IValue& value,
                                                       const std::string& path) {
  if (value.isNone()) {
    return std::vector<ExampleLeaf>();
  }
  if (value.isTensor()) {
    return std::vector<ExampleLeaf>{{path, value.toTensor()}};
  }
  std::vector<std::pair<std::string, c10::IValue>> parts;
  const auto optional = type->cast<c10::OptionalType>();
  const c10::TypePtr held = optional ? optional->getElementType() : type;
  if (const auto tuple = held->cast<c10::TupleType>(); tuple && value.isTuple()) {
    for (size_t k = 0; k < value.toTupleRef().elements().size(); ++k) {
      parts.emplace_back(PartName(*tuple, k), value.toTupleRef().elements()[k]);
    }
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) {
      parts.emplace_back(absl::StrCat(parts.size()), part);
    }
  } else if (value.isGenericDict() && held->kind() == c10::TypeKind::DictType &&
             held->expectRef<c10::DictType>().getKeyType()->kind() == c10::TypeKind::StringType) {
    for (const auto& entry : value.toGenericDict()) {
      parts.emplace_back(entry.key().toStringRef(), entry.value());
    }
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' of the recorded example is a ", value.tagKind(),
                     "; expected tensors, or tuples, lists or dicts of them, or an int, bool or "
                     "float argument"));
  }
  std::vector<ExampleLeaf> leaves;
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto tuple = held->cast<c10::TupleType>();
    const c10::TypePtr part_type = tuple ? tuple->elements()[k] : held->containedTypes().back();
    BRAID_ASSIGN_OR_RETURN(
        std::vector<ExampleLeaf> more,
        ExampleLeaves(part_type, parts[k].second, absl::StrCat(path, ".", parts[k].first)));
    leaves.insert(leaves.end(), more.begin(), more.end());
  }
  return leaves;
}

}  // namespace

absl::StatusOr<std::vector<c10::IValue>> RecordedExample(Module& module,
                                                         const c10::FunctionSchema& schema) {
  const auto method = module.find_method(kExampleMethod);
  if (!method) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is neither a config.pbtxt nor a recorded example to derive inputs and "
                     "outputs of ",
                     CallText(schema),
                     " from: write config.pbtxt, or record one with torch.utils.bundled_inputs"));
  }
  const c10::IValue examples = (*method)({});
  std::vector<c10::IValue> values;
  if (examples.isList() && !examples.toListRef().empty() && examples.toListRef()[0].isTuple()) {
    values = examples.toListRef()[0].toTupleRef().elements().vec();
  }
  const std::vector<c10::Argument>& arguments = schema.arguments();
  const bool enough = values.size() + 1 >= arguments.size() ||
                      arguments[values.size() + 1].default_value().has_value();
  if (!enough || values.size() + 1 > arguments.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the recorded example holds ", values.size(),
                                                      " arguments; the model takes ",
                                                      CallText(schema)));
  }
  return values;
}

absl::StatusOr<std::vector<ExampleLeaf>> TensorsOf(const std::vector<c10::IValue>& example,
                                                   const c10::FunctionSchema& schema) {
  std::vector<ExampleLeaf> leaves;
  for (size_t a = 0; a < example.size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a + 1];
    if (IsScalar(example[a])) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(std::vector<ExampleLeaf> more,
                           ExampleLeaves(argument.type(), example[a], argument.name()));
    leaves.insert(leaves.end(), more.begin(), more.end());
  }
  if (leaves.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(CallText(schema), " takes no tensor: there is nothing to send it"));
  }
  return leaves;
}

}  // namespace braid
