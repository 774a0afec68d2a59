#include "server/models/config/config_io.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/config/config_fields.h"
#include "server/storage/names.h"

namespace braid {
namespace {

constexpr uintmax_t kMaxLabelBytes = 16 << 20;

absl::StatusOr<DataType> ToDataType(inference::DataType type, absl::string_view where) {
  constexpr absl::string_view kPrefix = "TYPE_";
  const std::string name = inference::DataType_Name(type);
  const auto found = DataTypeFromName(absl::string_view(name).substr(kPrefix.size()));
  if (!found) {
    return InvalidField(where,
                        absl::StrCat(name, " is no tensor type here; expected TYPE_ and one of ",
                                     AllDataTypeNames()));
  }
  return *found;
}

template <typename Dims>
absl::StatusOr<std::vector<int64_t>> ToShape(const Dims& dims, const std::string& where) {
  std::vector<int64_t> shape;
  for (const int64_t dim : dims) {
    if (dim < 1 && dim != -1) {
      return InvalidField(where,
                          absl::StrCat(dim, " is no size; expected at least 1, or -1 for any"));
    }
    shape.push_back(dim);
  }
  return shape;
}

// The products of the sizes before, between and behind the -1s. nullopt if one overflows.
std::optional<std::vector<int64_t>> Stretches(const std::vector<int64_t>& shape) {
  std::vector<int64_t> products = {1};
  for (const int64_t dim : shape) {
    if (dim < 0) {
      products.push_back(1);
    } else if (__builtin_mul_overflow(products.back(), dim, &products.back())) {
      return std::nullopt;
    }
  }
  return products;
}

// As Triton's: the batch dimension is in neither shape, the elements are as many, and sizes that
// are free stand between the same numbers of elements.
absl::Status CheckReshape(const TensorSpec& spec, bool batched, const std::string& where) {
  const std::string field = where + ".reshape.shape";
  if (spec.reshape->empty() && !batched) {
    return InvalidField(field,
                        "is empty, which a model that is not batched cannot have; expected at "
                        "least one size");
  }
  const auto from = Stretches(spec.dims);
  const auto to = Stretches(*spec.reshape);
  if (!from || !to || *from != *to) {
    return InvalidField(
        field, absl::StrCat(ShapeString(*spec.reshape), " does not hold what dims ",
                            ShapeString(spec.dims),
                            " hold; expected as many elements before, between and behind as many "
                            "-1s"));
  }
  return absl::OkStatus();
}

template <typename Tensor>
absl::StatusOr<TensorSpec> ToSpec(const Tensor& tensor, bool batched, const std::string& where) {
  if (tensor.name().empty()) {
    return InvalidField(where + ".name", "is empty");
  }
  TensorSpec spec;
  spec.name = tensor.name();
  BRAID_ASSIGN_OR_RETURN(spec.type, ToDataType(tensor.data_type(), where + ".data_type"));
  BRAID_ASSIGN_OR_RETURN(spec.dims, ToShape(tensor.dims(), where + ".dims"));
  if (!Stretches(spec.dims)) {
    return InvalidField(where + ".dims",
                        absl::StrCat(ShapeString(spec.dims), " holds more than can be counted"));
  }
  if (tensor.has_reshape()) {
    BRAID_ASSIGN_OR_RETURN(spec.reshape,
                           ToShape(tensor.reshape().shape(), where + ".reshape.shape"));
    BRAID_RETURN_IF_ERROR(CheckReshape(spec, batched, where));
  }
  return spec;
}

// One a line, as in Triton.
absl::StatusOr<std::vector<std::string>> ReadLabels(const std::string& folder,
                                                    const std::string& filename,
                                                    const std::string& field) {
  if (!IsFolderName(filename)) {
    return InvalidField(field,
                        absl::StrCat("'", Excerpt(filename),
                                     "'; expected the name of a file in the model's folder"));
  }
  const std::filesystem::path path = std::filesystem::path(folder) / filename;
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) {
    file.open(path);
  }
  if (!file.is_open()) {
    return InvalidField(
        field, absl::StrCat("'", filename, "' cannot be read; expected a file in '", folder, "'"));
  }
  if (std::filesystem::file_size(path, error) > kMaxLabelBytes) {
    return InvalidField(field, absl::StrCat("'", filename, "' is larger than ", kMaxLabelBytes,
                                            " bytes; expected one label a line"));
  }
  std::vector<std::string> labels;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    labels.push_back(std::move(line));
  }
  return labels;
}

absl::Status CheckFormat(const inference::ModelInput& input, const std::string& where) {
  if (input.format() != inference::ModelInput::FORMAT_NONE && input.dims_size() != 3) {
    return InvalidField(where + ".format",
                        absl::StrCat(inference::ModelInput::Format_Name(input.format()), " with ",
                                     input.dims_size(), " dims; expected 3 dims"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const std::vector<TensorSpec>& specs, absl::string_view field) {
  std::set<absl::string_view> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!names.insert(specs[i].name).second) {
      return InvalidField(absl::StrCat(field, "[", i, "].name"),
                          absl::StrCat("'", Excerpt(specs[i].name), "' is there twice"));
    }
  }
  if (specs.empty()) {
    return InvalidField(field, "is empty: name every one, or leave config.pbtxt away");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> ReadInputSpecs(const inference::ModelConfig& text) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < text.input_size(); ++i) {
    const inference::ModelInput& input = text.input(i);
    const std::string where = absl::StrCat("input[", i, "]");
    BRAID_RETURN_IF_ERROR(
        RefuseUnknown(input, {"name", "data_type", "format", "dims", "reshape"}, where + "."));
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, ToSpec(input, text.max_batch_size() > 0, where));
    BRAID_RETURN_IF_ERROR(CheckFormat(input, where));
    if (input.format() != inference::ModelInput::FORMAT_NONE) {
      spec.format = inference::ModelInput::Format_Name(input.format());
    }
    specs.push_back(std::move(spec));
  }
  BRAID_RETURN_IF_ERROR(CheckNames(specs, "input"));
  return specs;
}

absl::StatusOr<std::vector<TensorSpec>> ReadOutputSpecs(const inference::ModelConfig& text,
                                                        const std::string& folder) {
  std::vector<TensorSpec> specs;
  for (int o = 0; o < text.output_size(); ++o) {
    const inference::ModelOutput& output = text.output(o);
    const std::string where = absl::StrCat("output[", o, "]");
    BRAID_RETURN_IF_ERROR(RefuseUnknown(
        output, {"name", "data_type", "dims", "reshape", "label_filename"}, where + "."));
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, ToSpec(output, text.max_batch_size() > 0, where));
    if (!output.label_filename().empty()) {
      spec.label_filename = output.label_filename();
      BRAID_ASSIGN_OR_RETURN(
          spec.labels, ReadLabels(folder, output.label_filename(), where + ".label_filename"));
    }
    specs.push_back(std::move(spec));
  }
  BRAID_RETURN_IF_ERROR(CheckNames(specs, "output"));
  return specs;
}

}  // namespace braid
