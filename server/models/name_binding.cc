#include "server/models/name_binding.h"

#include <algorithm>
#include <numeric>

#include "ATen/autocast_mode.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/base/status.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// Returns 3 for "NAME__3".
std::optional<size_t> PositionOf(const std::string& name) {
  const size_t at = name.rfind("__");
  uint32_t position = 0;
  if (at == std::string::npos || !absl::SimpleAtoi(name.substr(at + 2), &position)) {
    return std::nullopt;
  }
  return position;
}

absl::Status Mismatch(absl::string_view message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kMismatchPayload, absl::Cord());
  return status;
}

absl::Status CheckType(const TensorSpec& spec, const at::Tensor& value) {
  if (!value.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("output '", spec.name, "': the model returned None"));
  }
  BRAID_RETURN_IF_ERROR(CheckDense(spec.name, value));
  // Under autocast the model computes in a lower precision.
  const bool autocast = IsFloatingPoint(spec.type) && value.is_floating_point() &&
                        at::autocast::is_autocast_enabled(value.device().type());
  if (autocast || value.scalar_type() == ToScalarType(spec.type)) {
    return absl::OkStatus();
  }
  return Mismatch(absl::StrCat("output '", spec.name, "': the model returned ",
                               c10::toString(value.scalar_type()), " (expected ",
                               DataTypeName(spec.type), ", as configured)"));
}

}  // namespace

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

namespace {

// Returns the position of each of `wanted` in `names`; nullopt if one is missing or ambiguous.
std::optional<std::vector<size_t>> PlacesOf(const std::vector<std::string>& wanted,
                                            const std::vector<std::string>& names) {
  std::vector<size_t> places;
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || std::find(found + 1, names.end(), name) != names.end()) {
      return std::nullopt;
    }
    places.push_back(static_cast<size_t>(found - names.begin()));
  }
  return places;
}

// Returns the keys of names like "ARGUMENT.KEY", the tensors of a dict.
std::vector<std::string> KeysOf(const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  keys.reserve(names.size());
  for (const std::string& name : names) {
    keys.push_back(name.substr(name.find('.') + 1));  // the whole name if it has no '.'
  }
  return keys;
}

std::optional<std::vector<size_t>> NamedPositions(const std::vector<TensorSpec>& specs,
                                                  const std::vector<std::string>& names) {
  std::vector<std::string> wanted;
  wanted.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    wanted.push_back(spec.name);
  }
  const auto places = PlacesOf(wanted, names);
  return places ? places : PlacesOf(KeysOf(wanted), KeysOf(names));
}

std::vector<size_t> Positions(const std::vector<TensorSpec>& specs,
                              const std::vector<std::string>& names) {
  std::vector<size_t> ordered(specs.size());
  std::iota(ordered.begin(), ordered.end(), size_t{0});
  return NamedPositions(specs, names).value_or(NumberedPositions(specs).value_or(ordered));
}

// FAILED_PRECONDITION if only some of `specs` match `names` or are numbered: binding the others by
// position could bind them to the wrong tensor. kind: "input" or "output". verb: "takes" or
// "returns".
absl::Status CheckNames(const std::vector<TensorSpec>& specs, const std::vector<std::string>& names,
                        absl::string_view kind, absl::string_view verb) {
  if (NamedPositions(specs, names) || NumberedPositions(specs)) {
    return absl::OkStatus();
  }
  const std::vector<std::string> keys = KeysOf(names);
  const TensorSpec* unknown = nullptr;
  bool any = false;
  for (const TensorSpec& spec : specs) {
    const bool known = PlacesOf({spec.name}, names) || PlacesOf({spec.name}, keys);
    any = any || known || PositionOf(spec.name);
    unknown = known ? unknown : &spec;
  }
  if (!any) {
    return absl::OkStatus();
  }
  if (unknown == nullptr) {
    return Mismatch(absl::StrCat(kind, "s '", specs.front().name, "' to '", specs.back().name,
                                 "' mix full names and keys; the model ", verb, " ",
                                 absl::StrJoin(names, ", "),
                                 " (use the full names, or the keys, for all ", kind, "s)"));
  }
  return Mismatch(absl::StrCat("unknown ", kind, " '", unknown->name, "'; the model ", verb, " ",
                               absl::StrJoin(names, ", "), " (name or number all ", kind,
                               "s, or none)"));
}

// FAILED_PRECONDITION if all `names` are keys and there are fewer `outputs`, none of which is a
// key: their positions do not say which keys are meant.
absl::Status CheckOrder(const std::vector<TensorSpec>& outputs,
                        const std::vector<std::string>& names) {
  const bool keys = std::none_of(names.begin(), names.end(), [](const std::string& name) {
    return name.empty() || PositionOf(name);
  });
  if (!keys || outputs.size() >= names.size() || NamedPositions(outputs, names) ||
      NumberedPositions(outputs)) {
    return absl::OkStatus();
  }
  return Mismatch(absl::StrCat("unknown output '", outputs.front().name, "'; the model returns ",
                               absl::StrJoin(names, ", ")));
}

}  // namespace

absl::StatusOr<std::vector<size_t>> BindInputs(const std::vector<TensorSpec>& inputs,
                                               const std::vector<std::string>& names) {
  BRAID_RETURN_IF_ERROR(CheckNames(inputs, names, "input", "takes"));
  const std::vector<size_t> positions = Positions(inputs, names);
  std::vector<size_t> order(names.size(), inputs.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < order.size()) {
      order[positions[i]] = i;
    }
  }
  const bool complete = std::find(order.begin(), order.end(), inputs.size()) == order.end();
  if (!complete || inputs.size() != names.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the configuration names ", inputs.size(),
                                                      " inputs; model.pt2 takes ", names.size(),
                                                      ": ", absl::StrJoin(names, ", ")));
  }
  return order;
}

absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<std::string>& names) {
  BRAID_RETURN_IF_ERROR(CheckNames(outputs, names, "output", "returns"));
  BRAID_RETURN_IF_ERROR(CheckOrder(outputs, names));
  std::vector<size_t> positions = Positions(outputs, names);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (positions[o] >= names.size()) {
      return Mismatch(absl::StrCat("unknown output '", outputs[o].name, "'; the model returns ",
                                   names.size(), " tensors"));
    }
  }
  return positions;
}

absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<OutputLeaf>& leaves) {
  std::vector<std::string> paths;
  std::vector<std::string> paths_of_tensors;
  std::vector<size_t> tensors;
  for (size_t l = 0; l < leaves.size(); ++l) {
    paths.push_back(leaves[l].path);
    if (leaves[l].value.defined()) {
      paths_of_tensors.push_back(leaves[l].path);
      tensors.push_back(l);
    }
  }
  // Includes keys that hold None. Otherwise they would be bound to another key by position.
  BRAID_RETURN_IF_ERROR(CheckNames(outputs, paths, "output", "returns"));
  std::optional<std::vector<size_t>> bound = NamedPositions(outputs, paths);
  if (!bound) {
    BRAID_ASSIGN_OR_RETURN(bound, BindOutputs(outputs, paths_of_tensors));
    for (size_t& position : *bound) {
      position = tensors[position];
    }
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    BRAID_RETURN_IF_ERROR(CheckType(outputs[o], leaves[(*bound)[o]].value));
  }
  return *std::move(bound);
}

absl::Status CheckDense(absl::string_view name, const at::Tensor& output) {
  if (output.layout() == c10::kStrided && !output.is_nested() && !output.is_meta()) {
    return absl::OkStatus();
  }
  const std::string kind = output.is_nested() ? "nested"
                           : output.is_meta() ? "meta"
                                              : c10::str(output.layout());
  return absl::FailedPreconditionError(
      absl::StrCat("output '", name, "': the model returned a tensor of layout ", kind,
                   " (expected a dense tensor: call to_dense() in forward())"));
}

at::Tensor Reshape(const at::Tensor& tensor, const std::vector<int64_t>& from,
                   const std::vector<int64_t>& to) {
  const auto batch_dims = static_cast<size_t>(tensor.dim()) - from.size();  // 1 or 0
  std::vector<int64_t> open;
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] < 0) {
      open.push_back(tensor.size(static_cast<int64_t>(batch_dims + d)));
    }
  }
  std::vector<int64_t> shape(tensor.sizes().begin(),
                             tensor.sizes().begin() + static_cast<std::ptrdiff_t>(batch_dims));
  size_t next = 0;
  for (const int64_t dim : to) {
    shape.push_back(dim < 0 && next < open.size() ? open[next++] : dim);
  }
  return tensor.reshape(shape);
}

at::Tensor ToModel(const at::Tensor& input, const TensorSpec& spec) {
  if (spec.batch_dim > 0) {
    return input.movedim(0, static_cast<int64_t>(spec.batch_dim)).contiguous();
  }
  return spec.reshape ? Reshape(input, spec.dims, *spec.reshape) : input;
}

at::Tensor FromModel(const at::Tensor& output, const TensorSpec& spec) {
  const auto rank = static_cast<size_t>(output.dim());
  if (spec.batch_dim > 0 && spec.batch_dim < rank) {
    return Materialize(output.movedim(static_cast<int64_t>(spec.batch_dim), 0));
  }
  const bool fits = spec.reshape && rank >= spec.reshape->size();
  return Materialize(fits ? Reshape(output, *spec.reshape, spec.dims) : output);
}

}  // namespace braid
