#include "server/models/torchscript_io.h"

#include <algorithm>
#include <optional>

#include "ATen/autocast_mode.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

absl::Status FlattenInto(const c10::IValue& value, const std::string& path,
                         std::vector<OutputLeaf>* leaves);

template <typename Elements>
absl::Status FlattenSequence(const Elements& elements, const std::string& path,
                             std::vector<OutputLeaf>* leaves) {
  int64_t index = 0;
  for (const c10::IValue& element : elements) {
    const std::string inner = path.empty() ? path : Join(path, absl::StrCat(index));
    BRAID_RETURN_IF_ERROR(FlattenInto(element, inner, leaves));
    ++index;
  }
  return absl::OkStatus();
}

absl::Status FlattenInto(const c10::IValue& value, const std::string& path,
                         std::vector<OutputLeaf>* leaves) {
  if (value.isTensor()) {
    leaves->push_back({path, value.toTensor()});
    return absl::OkStatus();
  }
  if (value.isTuple()) {
    return FlattenSequence(value.toTupleRef().elements().vec(), path, leaves);
  }
  if (value.isList()) {
    return FlattenSequence(value.toListRef(), path, leaves);
  }
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (!entry.key().isString()) {
        return absl::FailedPreconditionError("the model returns a dict whose keys are no strings");
      }
      BRAID_RETURN_IF_ERROR(
          FlattenInto(entry.value(), Join(path, entry.key().toStringRef()), leaves));
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the model returns a ", value.tagKind(),
                   "; expected tensors, or tuples, lists or dicts of them"));
}

// The number of "NAME__3".
std::optional<size_t> PositionOf(const std::string& name) {
  const size_t at = name.rfind("__");
  uint32_t position = 0;
  if (at == std::string::npos || !absl::SimpleAtoi(name.substr(at + 2), &position)) {
    return std::nullopt;
  }
  return position;
}

// `positions[i]` for each of `specs`, by NAME__<number> if all are so named.
std::optional<std::vector<size_t>> NumberedPositions(const std::vector<TensorSpec>& specs) {
  std::vector<size_t> positions;
  for (const TensorSpec& spec : specs) {
    const std::optional<size_t> position = PositionOf(spec.name);
    if (!position) {
      return std::nullopt;
    }
    positions.push_back(*position);
  }
  return positions;
}

std::optional<std::vector<size_t>> NamedPositions(const std::vector<TensorSpec>& specs,
                                                  const std::vector<std::string>& names) {
  std::vector<size_t> positions;
  for (const TensorSpec& spec : specs) {
    const auto found = std::find(names.begin(), names.end(), spec.name);
    if (found == names.end()) {
      return std::nullopt;
    }
    positions.push_back(static_cast<size_t>(found - names.begin()));
  }
  return positions;
}

std::vector<size_t> OrderedPositions(size_t count) {
  std::vector<size_t> positions(count);
  for (size_t i = 0; i < count; ++i) {
    positions[i] = i;
  }
  return positions;
}

absl::Status CheckType(const TensorSpec& spec, const at::Tensor& value) {
  const bool shorter = IsFloatingPoint(spec.type) && value.is_floating_point() &&
                       at::autocast::is_autocast_enabled(value.device().type());
  if (shorter || value.scalar_type() == ToScalarType(spec.type)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("output '", spec.name, "' of the model is ", c10::toString(value.scalar_type()),
                   "; its configuration says ", DataTypeName(spec.type)));
}

}  // namespace

absl::StatusOr<std::vector<OutputLeaf>> Flatten(const c10::IValue& result) {
  std::vector<OutputLeaf> leaves;
  BRAID_RETURN_IF_ERROR(FlattenInto(result, "", &leaves));
  return leaves;
}

absl::StatusOr<std::vector<std::string>> RequiredArguments(const c10::FunctionSchema& schema) {
  std::vector<std::string> names;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.default_value().has_value()) {
      break;
    }
    if (!argument.type()->isSubtypeOf(*c10::TensorType::get())) {
      return absl::FailedPreconditionError(
          absl::StrCat("argument '", argument.name(), "' of forward is a ", argument.type()->str(),
                       "; expected a Tensor"));
    }
    names.push_back(argument.name());
  }
  return names;
}

absl::StatusOr<std::vector<size_t>> BindInputs(const std::vector<TensorSpec>& inputs,
                                               const c10::FunctionSchema& schema) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> required, RequiredArguments(schema));
  std::vector<std::string> all;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    all.push_back(schema.arguments()[i].name());
  }
  std::vector<size_t> positions =
      NamedPositions(inputs, all)
          .value_or(NumberedPositions(inputs).value_or(OrderedPositions(inputs.size())));
  std::vector<std::optional<size_t>> input_at(inputs.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= input_at.size() || input_at[positions[i]]) {
      return absl::FailedPreconditionError(
          absl::StrCat("input '", inputs[i].name, "' is at no place of its own among the first ",
                       inputs.size(), " arguments of forward(", absl::StrJoin(all, ", "), ")"));
    }
    input_at[positions[i]] = i;
  }
  if (inputs.size() < required.size() || inputs.size() > all.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the configuration names ", inputs.size(),
                                                      " inputs; the model takes forward(",
                                                      absl::StrJoin(all, ", "), ")"));
  }
  std::vector<size_t> order;
  for (const std::optional<size_t>& input : input_at) {
    order.push_back(*input);
  }
  return order;
}

absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<OutputLeaf>& leaves) {
  std::vector<std::string> paths;
  for (const OutputLeaf& leaf : leaves) {
    paths.push_back(leaf.path);
  }
  std::vector<size_t> positions =
      NamedPositions(outputs, paths)
          .value_or(NumberedPositions(outputs).value_or(OrderedPositions(outputs.size())));
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (positions[o] >= leaves.size()) {
      return absl::FailedPreconditionError(absl::StrCat("output '", outputs[o].name,
                                                        "' is not among the ", leaves.size(),
                                                        " tensors that the model returns"));
    }
    BRAID_RETURN_IF_ERROR(CheckType(outputs[o], leaves[positions[o]].value));
  }
  return positions;
}

}  // namespace braid
