#include "server/models/pair/pair_binding.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/models/input_check.h"
#include "server/models/name_binding.h"

namespace braid {
namespace {

std::vector<std::string> NamesOf(const std::vector<PairTensor>& tensors) {
  std::vector<std::string> names;
  for (const PairTensor& tensor : tensors) {
    names.push_back(tensor.name);
  }
  return names;
}

std::string Describe(const PairTensor& tensor) {
  return absl::StrCat(DataTypeName(tensor.type), ShapeString(tensor.shape));
}

// True if the configured `dims`, without the batch dimension, match the package's tensor. Clients
// may send any size for -1, so an input of the package must take any. Configurations declare a size
// of 0 as -1.
bool SizesAgree(const std::vector<int64_t>& dims, const PairTensor& tensor, bool is_input) {
  bool agree = dims.size() + 1 == tensor.shape.size();
  for (size_t d = 0; agree && d < dims.size(); ++d) {
    const int64_t size = tensor.shape[d + 1];
    agree = size < 0 || dims[d] == size || (dims[d] < 0 && (!is_input || size == 0));
  }
  for (const VariableDim& variable : tensor.variable_dims) {
    agree = agree && (dims[variable.dim] < 0 || Fits(dims[variable.dim], variable));
  }
  return agree;
}

absl::Status ShapeMismatch(absl::string_view kind, const TensorSpec& spec,
                           const std::vector<int64_t>& dims, const PairTensor& tensor) {
  return absl::FailedPreconditionError(absl::StrCat(
      kind, " '", spec.name, "' is configured as ", DataTypeName(spec.type), "[rows",
      dims.empty() ? "" : ", ", absl::StrJoin(dims, ", "), "] (model.pt2 was exported with ",
      Describe(tensor), ", dim 0 is the number of rows): correct the configuration, or export a ",
      "model that fits it"));
}

// The graphs move the batch, so its dim cannot change after the export.
absl::Status CheckBatchDim(absl::string_view kind, const TensorSpec& spec,
                           const PairTensor& tensor) {
  if (spec.batch_dim == tensor.batch_dim) {
    return absl::OkStatus();
  }
  const std::string key = absl::StrCat("batch_dim.", spec.name);
  return absl::FailedPreconditionError(absl::StrCat(
      kind, " '", spec.name, "' is configured with the batch as dim ", spec.batch_dim,
      " (model.pt2 was exported with the batch as dim ", tensor.batch_dim, "): ",
      tensor.batch_dim == 0
          ? absl::StrCat("remove parameters[\"", key, "\"]")
          : absl::StrCat("set parameters[\"", key, "\"] to \"", tensor.batch_dim, "\""),
      ", or export a model that fits it"));
}

absl::Status CheckOutput(const PairTensor& output, const TensorSpec& spec) {
  BRAID_RETURN_IF_ERROR(CheckBatchDim("output", spec, output));
  const std::vector<int64_t>& dims = spec.reshape ? *spec.reshape : spec.dims;
  // An output that is one number per chunk has no rows.
  const bool fits =
      output.shape.empty() ? dims.empty() : SizesAgree(dims, output, /*is_input=*/false);
  return fits && spec.type == output.type ? absl::OkStatus()
                                          : ShapeMismatch("output", spec, dims, output);
}

absl::Status CheckInput(const PairTensor& input, bool batched, const TensorSpec& spec) {
  const std::vector<int64_t>& dims = spec.reshape ? *spec.reshape : spec.dims;
  if (!batched) {
    return absl::FailedPreconditionError(absl::StrCat(
        "max_batch_size: 0 with dims of input '", spec.name, "' or of another tensor that do not ",
        "begin with -1 (an exported pair has a batch dimension of any size: set max_batch_size to ",
        "1 or more, or put -1 before all dims)"));
  }
  BRAID_RETURN_IF_ERROR(CheckBatchDim("input", spec, input));
  if (spec.reshape && !input.variable_dims.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("input '", spec.name, "' is configured with a reshape, but its sizes vary ",
                     "(expected the dims that model.pt2 takes: ", Describe(input), ")"));
  }
  const bool fits = SizesAgree(dims, input, /*is_input=*/true) && spec.type == input.type;
  return fits ? absl::OkStatus() : ShapeMismatch("input", spec, dims, input);
}

}  // namespace

absl::StatusOr<PairBinding> BindPair(const PairStage& part, ModelConfig* config) {
  PairBinding binding;
  BRAID_ASSIGN_OR_RETURN(binding.inputs, BindInputs(config->inputs, NamesOf(part.inputs)));
  for (size_t p = 0; p < part.inputs.size(); ++p) {
    TensorSpec& spec = config->inputs[binding.inputs[p]];
    BRAID_RETURN_IF_ERROR(CheckInput(part.inputs[p], config->has_batch_dim(spec), spec));
    spec.variable_dims = part.inputs[p].variable_dims;
    if (!spec.range) {
      spec.range = part.inputs[p].range;
      spec.range_derived = spec.range.has_value();
    }
  }
  BRAID_ASSIGN_OR_RETURN(binding.outputs, BindOutputs(config->outputs, NamesOf(part.outputs)));
  for (size_t o = 0; o < binding.outputs.size(); ++o) {
    const TensorSpec& spec = config->outputs[o];
    BRAID_RETURN_IF_ERROR(CheckOutput(part.outputs[binding.outputs[o]], spec));
  }
  return binding;
}

}  // namespace braid
