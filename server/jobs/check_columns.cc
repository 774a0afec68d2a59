#include "server/jobs/check_columns.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/data_type.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Shape of one row of an input. A model without a batch dimension has its rows in dim 0.
std::vector<int64_t> RowShape(const ModelConfig& config, const TensorSpec& spec) {
  std::vector<int64_t> dims = spec.dims;
  if (!config.batched() && !dims.empty()) {
    dims.erase(dims.begin());
  }
  return dims;
}

bool Fits(const std::vector<int64_t>& shape, const std::vector<int64_t>& dims) {
  return std::ranges::equal(shape, dims, [](int64_t size, int64_t dim) {
    return size == dim || dim == -1 || size == kUnknownDim;
  });
}

std::string Columns(const TensorColumn& tensor) {
  return tensor.columns.size() == 1 ? absl::StrCat("column '", Excerpt(tensor.shown_column()), "'")
                                    : absl::StrCat(tensor.columns.size(), " columns");
}

absl::Status CheckInput(const TensorColumn& tensor, const RowType& row, const TensorSpec& spec,
                        const ModelConfig& config, const std::string& field) {
  if (spec.broadcast) {
    return InvalidField(absl::StrCat(field, ".name"),
                        absl::StrCat("input '", spec.name, "' of model '", config.name,
                                     "' has no dimension for rows (expected an input with one; a "
                                     "job cannot set it)"));
  }
  if (row.type != spec.type) {
    const bool padded = tensor.decoder != nullptr && tensor.decoder->takes_lists();
    const bool decoded = tensor.decoder != nullptr && !padded;
    return InvalidField(absl::StrCat(field, decoded  ? ".decode"
                                            : padded ? ".columns"
                                                     : ".datatype"),
                        absl::StrCat(Columns(tensor), " is ", DataTypeName(row.type), " (expected ",
                                     DataTypeName(spec.type), " for input '", spec.name, "'; ",
                                     decoded  ? "add to_float to the transforms)"
                                     : padded ? "store the lists with this datatype)"
                                              : "set the datatype to convert)"));
  }
  const std::vector<int64_t> dims = RowShape(config, spec);
  if (!Fits(row.shape, dims)) {
    return InvalidField(
        absl::StrCat(field, ".columns"),
        absl::StrCat("a row of ", Columns(tensor), " is ", RowTypeString(row), " (expected ",
                     RowTypeString({spec.type, dims}), " for input '", spec.name, "')"));
  }
  return absl::OkStatus();
}

// Checks a tensor that a decoder makes besides the one of its column, and marks its input as fed.
absl::Status CheckDecoded(const Decoder::Output& output, const ModelConfig& config,
                          const std::string& field, std::vector<bool>* given) {
  const auto spec = std::ranges::find(config.inputs, output.input, &TensorSpec::name);
  if (spec == config.inputs.end()) {
    return InvalidField(absl::StrCat(field, ".decode"),
                        absl::StrCat("model '", config.name, "' has no input '",
                                     Excerpt(output.input), "' for the decoded tensor"));
  }
  const std::vector<int64_t> dims = RowShape(config, *spec);
  if (output.row.type != spec->type || !Fits(output.row.shape, dims)) {
    return InvalidField(absl::StrCat(field, ".decode"),
                        absl::StrCat("a row of '", output.input, "' is ", RowTypeString(output.row),
                                     " (expected ", RowTypeString({spec->type, dims}), ")"));
  }
  const auto index = static_cast<size_t>(spec - config.inputs.begin());
  if ((*given)[index]) {
    return InvalidField(absl::StrCat(field, ".decode"),
                        absl::StrCat("input '", output.input,
                                     "' gets a column and a decoded tensor "
                                     "(remove one of them)"));
  }
  (*given)[index] = true;
  return absl::OkStatus();
}

std::string InputNames(const ModelConfig& config) {
  return absl::StrJoin(config.inputs, ", ", [](std::string* out, const TensorSpec& input) {
    absl::StrAppend(out, input.name);
  });
}

}  // namespace

absl::Status CheckInputColumns(const std::vector<NamedColumns>& lists, const ModelConfig& config) {
  std::vector<bool> given(config.inputs.size());
  for (const NamedColumns& list : lists) {
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      const std::string field = absl::StrCat(list.field, "[", i, "]");
      const auto spec = std::ranges::find(config.inputs, list.tensors[i].name, &TensorSpec::name);
      if (spec == config.inputs.end()) {
        return InvalidField(
            absl::StrCat(field, ".name"),
            absl::StrCat("model '", config.name, "' has no input '", Excerpt(list.tensors[i].name),
                         "' (expected one of ", InputNames(config), ")"));
      }
      given[static_cast<size_t>(spec - config.inputs.begin())] = true;
      BRAID_RETURN_IF_ERROR(CheckInput(list.tensors[i], list.rows[i], *spec, config, field));
    }
  }
  for (const NamedColumns& list : lists) {
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      if (list.tensors[i].decoder == nullptr) {
        continue;
      }
      for (const Decoder::Output& output : list.tensors[i].decoder->outputs()) {
        if (!output.input.empty()) {
          BRAID_RETURN_IF_ERROR(
              CheckDecoded(output, config, absl::StrCat(list.field, "[", i, "]"), &given));
        }
      }
    }
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const TensorSpec& spec = config.inputs[i];
    if (!given[i] && !(spec.scalar && spec.default_value)) {
      return InvalidField(lists.front().field,
                          absl::StrCat("no column for input '", spec.name, "' of model '",
                                       config.name, "' (expected a column for each input)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
