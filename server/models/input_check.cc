#include "server/models/input_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

std::string Names(const std::vector<TensorSpec>& specs) {
  return absl::StrJoin(specs, ", ", [](std::string* out, const TensorSpec& spec) {
    absl::StrAppend(out, "'", spec.name, "'");
  });
}

std::string ExpectedShape(const ModelConfig& config, const TensorSpec& spec) {
  std::vector<int64_t> shape = spec.dims;
  if (config.has_batch_dim(spec)) {
    shape.insert(shape.begin(), -1);
  }
  return absl::StrCat(ShapeString(shape), " (-1: any size)");
}

absl::Status CheckShape(const ModelConfig& config, const TensorSpec& spec, const HostTensor& tensor,
                        const std::string& field) {
  const size_t batch_dims = config.has_batch_dim(spec) ? 1 : 0;
  bool fits = tensor.shape.size() == spec.dims.size() + batch_dims;
  for (size_t d = 0; fits && d < spec.dims.size(); ++d) {
    fits = spec.dims[d] < 0 || spec.dims[d] == tensor.shape[d + batch_dims];
  }
  if (!fits) {
    return InvalidField(
        field + ".shape",
        absl::StrCat("input '", spec.name, "' has shape ", ShapeString(tensor.shape), "; model '",
                     config.name, "' takes ", ExpectedShape(config, spec)));
  }
  if (batch_dims > 0 && tensor.rows() == 0) {
    return InvalidField(
        field + ".shape",
        absl::StrCat("input '", spec.name, "' has shape ", ShapeString(tensor.shape),
                     ", which holds 0 rows; expected at least 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckOne(const ModelConfig& config, const TensorSpec& spec, const HostTensor& tensor,
                      const std::string& field) {
  if (tensor.type != spec.type) {
    return InvalidField(
        field + ".datatype",
        absl::StrCat("input '", spec.name, "' is ", DataTypeName(tensor.type), "; model '",
                     config.name, "' takes ", DataTypeName(spec.type)));
  }
  return CheckShape(config, spec, tensor, field);
}

std::optional<size_t> IndexOf(const std::vector<TensorSpec>& specs, absl::string_view name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

absl::Status CheckRows(const std::vector<HostTensor>& inputs, absl::string_view field) {
  const HostTensor* first = nullptr;
  for (const HostTensor& input : inputs) {
    if (input.broadcast) {
      continue;
    }
    if (first == nullptr) {
      first = &input;
    }
    if (input.rows() != first->rows()) {
      return InvalidField(
          field, absl::StrCat("dim 0 differs: '", first->name, "' has shape ",
                              ShapeString(first->shape), ", '", input.name, "' has shape ",
                              ShapeString(input.shape), "; expected the same number of rows"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t RowsOf(const std::vector<HostTensor>& inputs) {
  const auto cut = [](const HostTensor& input) { return !input.broadcast; };
  return std::find_if(inputs.begin(), inputs.end(), cut)->rows();
}

absl::StatusOr<std::vector<HostTensor>> CheckInputs(const ModelConfig& config,
                                                    std::vector<HostTensor> tensors,
                                                    absl::string_view field) {
  std::vector<std::optional<HostTensor>> found(config.inputs.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string element = absl::StrCat(field, "[", i, "]");
    const std::optional<size_t> index = IndexOf(config.inputs, tensors[i].name);
    if (!index) {
      return InvalidField(
          element + ".name",
          absl::StrCat("model '", config.name, "' has no input '", Excerpt(tensors[i].name),
                       "'; it takes ", Names(config.inputs)));
    }
    if (found[*index]) {
      return InvalidField(element + ".name", absl::StrCat("input '", tensors[i].name,
                                                          "' is there twice; expected once"));
    }
    BRAID_RETURN_IF_ERROR(CheckOne(config, config.inputs[*index], tensors[i], element));
    found[*index] = std::move(tensors[i]);
    found[*index]->broadcast = config.inputs[*index].broadcast;
  }
  std::vector<HostTensor> ordered;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) {
      return InvalidField(field,
                          absl::StrCat("input '", config.inputs[i].name, "' is missing; model '",
                                       config.name, "' takes ", Names(config.inputs)));
    }
    ordered.push_back(*std::move(found[i]));
  }
  if (config.batched()) {
    BRAID_RETURN_IF_ERROR(CheckRows(ordered, field));
  }
  return ordered;
}

}  // namespace braid
