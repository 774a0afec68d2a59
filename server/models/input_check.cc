#include "server/models/input_check.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/batch_layout.h"

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
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(spec.batch_dim), -1);
  }
  const bool open = std::find(shape.begin(), shape.end(), -1) != shape.end();
  return absl::StrCat("expected ", ShapeString(shape), open ? ", -1 is any size" : "",
                      config.fixed_rows
                          ? "; for any number of rows, export the model with a dynamic dim 0, or "
                            "add a config.pbtxt with max_batch_size"
                          : "");
}

// Formats the shape of an input as the client sent it. BatchToFront() has moved the batch of
// tensors of the expected rank only.
std::string SentShape(const TensorSpec& spec, const HostTensor& tensor) {
  return ShapeString(tensor.shape.size() == spec.dims.size() + 1
                         ? ClientShape(tensor.shape, spec.batch_dim)
                         : tensor.shape);
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
        absl::StrCat(SentShape(spec, tensor), " does not fit input '", spec.name, "' of model '",
                     config.name, "' (", ExpectedShape(config, spec), ")"));
  }
  if (batch_dims > 0 && tensor.rows() == 0) {
    return InvalidField(field + ".shape",
                        absl::StrCat(SentShape(spec, tensor), " of input '", spec.name,
                                     "' has 0 rows (expected at least 1)"));
  }
  return absl::OkStatus();
}

// Describes the sizes that a dimension may have: "1 to 512", "a multiple of 8, at least 16".
std::string DescribeSizes(const VariableDim& dim) {
  const std::string multiple =
      dim.factor > 1 ? absl::StrCat("a multiple of ", dim.factor, ", ") : "";
  const std::optional<int64_t> largest = LargestSize(dim);
  return largest ? absl::StrCat(multiple, dim.min * dim.factor, " to ", *largest)
                 : absl::StrCat(multiple, "at least ", dim.min * dim.factor);
}

// Checks every element. `tensor.data` need not be aligned.
template <typename Element>
absl::Status CheckRange(const TensorSpec& spec, const HostTensor& tensor,
                        const std::string& field) {
  const size_t count = tensor.bytes / sizeof(Element);
  const auto at = [data = static_cast<const char*>(tensor.data)](size_t i) {
    Element value;
    std::memcpy(&value, data + i * sizeof(Element), sizeof(Element));
    return value;
  };
  const auto outside = [range = *spec.range](Element value) {
    return static_cast<int>(std::cmp_less(value, range.min)) |
           static_cast<int>(std::cmp_greater(value, range.max));
  };
  int wrong = 0;
  for (size_t i = 0; i < count; ++i) {  // Without branches, so that compilers vectorize it.
    wrong |= outside(at(i));
  }
  for (size_t i = 0; wrong != 0 && i < count; ++i) {
    if (outside(at(i)) != 0) {
      return InvalidField(field, absl::StrCat("input '", spec.name, "' has the value ", +at(i),
                                              " at index ", i, " in row-major order (expected ",
                                              spec.range->min, " to ", spec.range->max, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRangeOf(const TensorSpec& spec, const HostTensor& tensor,
                          const std::string& field) {
  switch (tensor.type) {
    case DataType::kUint8:
      return CheckRange<uint8_t>(spec, tensor, field);
    case DataType::kUint16:
      return CheckRange<uint16_t>(spec, tensor, field);
    case DataType::kUint32:
      return CheckRange<uint32_t>(spec, tensor, field);
    case DataType::kUint64:
      return CheckRange<uint64_t>(spec, tensor, field);
    case DataType::kInt8:
      return CheckRange<int8_t>(spec, tensor, field);
    case DataType::kInt16:
      return CheckRange<int16_t>(spec, tensor, field);
    case DataType::kInt32:
      return CheckRange<int32_t>(spec, tensor, field);
    case DataType::kInt64:
      return CheckRange<int64_t>(spec, tensor, field);
    default:
      return absl::OkStatus();  // Only integers have ranges.
  }
}

absl::Status CheckOne(const ModelConfig& config, const TensorSpec& spec, const HostTensor& tensor,
                      const std::string& field) {
  if (tensor.type != spec.type) {
    return InvalidField(
        field + ".datatype",
        absl::StrCat(DataTypeName(tensor.type), " does not match input '", spec.name,
                     "' of model '", config.name, "' (expected ", DataTypeName(spec.type), ")"));
  }
  BRAID_RETURN_IF_ERROR(CheckShape(config, spec, tensor, field));
  return spec.range ? CheckRangeOf(spec, tensor, field) : absl::OkStatus();
}

// Size of a symbol in a request, and the dimension that has it.
struct SymbolSize {
  int64_t size = 0;
  std::string where;  // "dim 1 of input 'ids' is 7"
};

// Checks the bounds of variable dims, and that those with one symbol agree.
// sizes: of the symbols in the inputs before this one. Receives those of this one.
absl::Status CheckVariableDims(const ModelConfig& config, const TensorSpec& spec,
                               const HostTensor& tensor, const std::string& field,
                               std::map<std::string, SymbolSize>* sizes) {
  const size_t batch_dims = config.has_batch_dim(spec) ? 1 : 0;
  for (const VariableDim& dim : spec.variable_dims) {
    const int64_t size = tensor.shape[dim.dim + batch_dims];
    const size_t sent = dim.dim < spec.batch_dim ? dim.dim : dim.dim + batch_dims;
    const std::string where = absl::StrCat("dim ", sent, " of input '", spec.name, "' is ", size);
    if (!Fits(size, dim)) {
      return InvalidField(field + ".shape",
                          absl::StrCat(where, " (expected ", DescribeSizes(dim), "; model '",
                                       config.name, "' was exported for these sizes)"));
    }
    const auto [known, first] = sizes->try_emplace(dim.symbol, size / dim.factor, where);
    if (!first && known->second.size * dim.factor != size) {
      return InvalidField(
          field + ".shape",
          absl::StrCat(where, ", but ", known->second.where, " (expected ",
                       known->second.size * dim.factor, ": both depend on '", dim.symbol, "')"));
    }
  }
  return absl::OkStatus();
}

// Returns the default value of a scalar as an input tensor.
HostTensor DefaultOf(const TensorSpec& spec) {
  const auto value = std::make_shared<const ScalarValue>(*spec.default_value);
  HostTensor tensor;
  tensor.name = spec.name;
  tensor.type = spec.type;
  tensor.data = std::visit([](const auto& held) -> const void* { return &held; }, *value);
  const bool none = std::holds_alternative<std::monostate>(*value);
  tensor.shape.resize(none ? 1 : 0);
  tensor.bytes = none ? 0 : DataTypeSize(spec.type);
  tensor.owner = value;
  tensor.broadcast = true;
  return tensor;
}

std::optional<size_t> IndexOf(const std::vector<TensorSpec>& specs, absl::string_view name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

// Limits rows without elements. They cost time and response bytes, and a request of a few bytes can
// have any number of them.
absl::Status CheckEmptyRows(const ModelConfig& config, const std::vector<HostTensor>& inputs,
                            absl::string_view field) {
  const bool empty = std::all_of(inputs.begin(), inputs.end(), [](const HostTensor& input) {
    return input.broadcast || input.bytes == 0;
  });
  const int64_t rows = RowsOf(inputs);
  if (!empty || rows <= config.max_batch_size) {
    return absl::OkStatus();
  }
  return InvalidField(
      field, absl::StrCat(rows, " rows without elements (expected at most ", config.max_batch_size,
                          ", max_batch_size of model '", config.name, "')"));
}

// Checks batches that cannot be padded: a copy of a row would change the results of the others.
absl::Status CheckMinRows(const ModelConfig& config, const std::vector<HostTensor>& inputs,
                          absl::string_view field) {
  const int64_t rows = RowsOf(inputs);
  if (config.has_independent_rows() || rows >= config.min_rows) {
    return absl::OkStatus();
  }
  return InvalidField(
      field,
      absl::StrCat(rows, " rows (expected at least ", config.min_rows, ": model '", config.name,
                   "' was exported for them, and its rows may depend on each other)"));
}

// inputs: in the order of config.inputs.
absl::Status CheckRows(const ModelConfig& config, const std::vector<HostTensor>& inputs,
                       absl::string_view field) {
  const auto has_rows = [](const HostTensor& input) { return !input.broadcast; };
  const auto first =
      static_cast<size_t>(std::find_if(inputs.begin(), inputs.end(), has_rows) - inputs.begin());
  for (size_t i = first; i < inputs.size(); ++i) {
    if (inputs[i].broadcast || inputs[i].rows() == inputs[first].rows()) {
      continue;
    }
    const auto sent = [&](size_t input) {
      return absl::StrCat("'", inputs[input].name, "' ",
                          SentShape(config.inputs[input], inputs[input]));
    };
    const size_t dim = config.inputs[first].batch_dim;
    const size_t other = config.inputs[i].batch_dim;
    const std::string expected =
        dim == other ? absl::StrCat("the same dim ", dim)
                     : absl::StrCat("dim ", dim, " of '", inputs[first].name, "' equal to dim ",
                                    other, " of '", inputs[i].name, "'");
    return InvalidField(field, absl::StrCat("inputs have different numbers of rows: ", sent(first),
                                            ", ", sent(i), " (expected ", expected, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Fits(int64_t size, const VariableDim& dim) {
  return size % dim.factor == 0 && size / dim.factor >= dim.min && size / dim.factor <= dim.max;
}

std::optional<int64_t> LargestSize(const VariableDim& dim) {
  if (dim.max >= std::numeric_limits<int64_t>::max() / dim.factor) {
    return std::nullopt;
  }
  return dim.max * dim.factor;
}

int64_t RowsOf(const std::vector<HostTensor>& inputs) {
  const auto has_rows = [](const HostTensor& input) { return !input.broadcast; };
  return std::find_if(inputs.begin(), inputs.end(), has_rows)->rows();
}

absl::Status UnknownInput(absl::string_view field, absl::string_view model, absl::string_view input,
                          const std::vector<TensorSpec>& inputs) {
  return InvalidField(field, absl::StrCat("model '", model, "' has no input '", Excerpt(input),
                                          "' (expected ", Names(inputs), ")"));
}

absl::StatusOr<std::vector<HostTensor>> CheckInputs(const ModelConfig& config,
                                                    std::vector<HostTensor> tensors,
                                                    absl::string_view field) {
  std::vector<std::optional<HostTensor>> found(config.inputs.size());
  std::map<std::string, SymbolSize> sizes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string element = absl::StrCat(field, "[", i, "]");
    const std::optional<size_t> index = IndexOf(config.inputs, tensors[i].name);
    if (!index) {
      return UnknownInput(element + ".name", config.name, tensors[i].name, config.inputs);
    }
    if (found[*index]) {
      return InvalidField(element + ".name",
                          absl::StrCat("duplicate input '", tensors[i].name, "'"));
    }
    const TensorSpec& spec = config.inputs[*index];
    BRAID_RETURN_IF_ERROR(CheckOne(config, spec, tensors[i], element));
    BRAID_RETURN_IF_ERROR(CheckVariableDims(config, spec, tensors[i], element, &sizes));
    found[*index] = std::move(tensors[i]);
    found[*index]->broadcast = config.inputs[*index].broadcast;
  }
  std::vector<HostTensor> ordered;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i] && config.inputs[i].default_value) {
      found[i] = DefaultOf(config.inputs[i]);
    }
    if (!found[i]) {
      return InvalidField(field,
                          absl::StrCat("input '", config.inputs[i].name, "' is missing (model '",
                                       config.name, "' takes ", Names(config.inputs), ")"));
    }
    ordered.push_back(*std::move(found[i]));
  }
  if (config.batched()) {
    BRAID_RETURN_IF_ERROR(CheckRows(config, ordered, field));
    BRAID_RETURN_IF_ERROR(CheckEmptyRows(config, ordered, field));
    BRAID_RETURN_IF_ERROR(CheckMinRows(config, ordered, field));
  }
  return ordered;
}

}  // namespace braid
