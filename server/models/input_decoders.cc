#include "server/models/input_decoders.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/base/row_type.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/decoder.h"
#include "server/decode/pad_decoder.h"
#include "server/models/input_check.h"

namespace braid {
namespace {

std::string Describe(DataType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(DataTypeName(type), " ", ShapeString(shape));
}

bool Fits(const RowType& row, const TensorSpec& input) {
  return row.type == input.type &&
         std::equal(row.shape.begin(), row.shape.end(), input.dims.begin(), input.dims.end(),
                    [](int64_t decoded, int64_t dim) { return dim < 0 || decoded == dim; });
}

absl::Status CheckOutput(const Decoder::Output& output, const TensorSpec& input,
                         const ModelConfig& config, absl::string_view field) {
  if (!config.has_batch_dim(input)) {
    return InvalidField(
        field,
        absl::StrCat("input '", input.name, "' has no batch dimension (expected ",
                     config.batched() ? "an input that is not broadcast" : "max_batch_size above 0",
                     ")"));
  }
  if (!Fits(output.row, input)) {
    return InvalidField(
        field, absl::StrCat("decodes to ", Describe(output.row.type, output.row.shape), " for '",
                            input.name, "' (expected ", Describe(input.type, input.dims),
                            ", the datatype and dims of the input)"));
  }
  return absl::OkStatus();
}

// Checks that lengths within the bounds of the input stay there when they are rounded up.
absl::Status CheckMultiple(const TensorSpec& input, const std::string& field) {
  const int64_t multiple = input.pad->multiple;
  for (const VariableDim& dim : input.variable_dims) {
    const std::optional<int64_t> largest = LargestSize(dim);
    if (multiple % dim.factor != 0 || (largest && *largest % multiple != 0)) {
      return InvalidField(absl::StrCat(field, ".multiple"),
                          absl::StrCat(multiple, " (expected a multiple of ", dim.factor,
                                       largest ? absl::StrCat(" that divides ", *largest) : "",
                                       ", because model.pt2 was exported for these sizes)"));
    }
  }
  return absl::OkStatus();
}

absl::Status MakePadding(ModelConfig* config, TensorSpec* input) {
  const std::string field = absl::StrCat("parameters[\"pad.", Excerpt(input->name), "\"]");
  const std::string& name = input->pad->mask;
  const auto mask = std::find_if(config->inputs.begin(), config->inputs.end(),
                                 [&](const TensorSpec& other) { return other.name == name; });
  if (!name.empty() && (mask == config->inputs.end() || &*mask == input || mask->pad)) {
    return InvalidField(absl::StrCat(field, ".mask"),
                        absl::StrCat("'", Excerpt(name), "' (expected another input of the model ",
                                     "that has no pad parameter)"));
  }
  if (input->decode) {
    return InvalidField(field, "cannot be combined with a decode parameter");
  }
  BRAID_RETURN_IF_ERROR(CheckMultiple(*input, field));
  const DataType mask_type = name.empty() ? DataType::kInt64 : mask->type;
  BRAID_ASSIGN_OR_RETURN(input->padding,
                         MakePadDecoder(*input->pad, {input->type, input->dims}, mask_type, field));
  BRAID_RETURN_IF_ERROR(CheckOutput(input->padding->outputs().front(), *input, *config, field));
  if (!name.empty()) {
    BRAID_RETURN_IF_ERROR(CheckOutput(input->padding->outputs().back(), *mask, *config, field));
    // Pads a mask that a client sends.
    BRAID_ASSIGN_OR_RETURN(
        mask->padding, MakePadDecoder({.multiple = input->pad->multiple}, {mask->type, mask->dims},
                                      DataType::kInt64, field));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeDecoders(const std::vector<std::string>& directories, ModelConfig* config) {
  for (TensorSpec& input : config->inputs) {
    if (input.pad) {
      BRAID_RETURN_IF_ERROR(MakePadding(config, &input));
    }
  }
  std::set<absl::string_view> filled;
  for (TensorSpec& input : config->inputs) {
    if (!input.decode) {
      continue;
    }
    const std::string field = absl::StrCat("parameters[\"decode.", Excerpt(input.name), "\"]");
    BRAID_ASSIGN_OR_RETURN(input.decoder, MakeDecoder(*input.decode, directories, field));
    for (const Decoder::Output& output : input.decoder->outputs()) {
      const absl::string_view name = output.input.empty() ? input.name : output.input;
      const auto spec =
          std::find_if(config->inputs.begin(), config->inputs.end(),
                       [name](const TensorSpec& other) { return other.name == name; });
      if (spec == config->inputs.end()) {
        return InvalidField(field, absl::StrCat("the model has no input '", name, "'"));
      }
      BRAID_RETURN_IF_ERROR(CheckOutput(output, *spec, *config, field));
      if (!filled.insert(spec->name).second) {
        return InvalidField(field, absl::StrCat("input '", name, "' is filled by two decoders"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
