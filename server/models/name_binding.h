// Binds the tensor names of a configuration to the tensors that a model takes and returns.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/models/model_config.h"

namespace braid {

// Leaf of a model's result, which is a tensor or nested tuples, lists and dicts of tensors.
struct OutputLeaf {
  // Keys of the dicts around it, joined by '.'. Empty if there are none.
  std::string path;
  at::Tensor value;  // undefined for None
};

// Payload of an error that does not depend on the model's input values: the configuration names
// other tensors or datatypes than the model has.
inline constexpr char kMismatchPayload[] = "braid/mismatch";

// Returns the number in NAME__<number> of each spec; nullopt unless all are named like this.
std::optional<std::vector<size_t>> NumberedPositions(const std::vector<TensorSpec>& specs);

// Binds the inputs of a package, `names`, to the configured `inputs`. Returns the index in `inputs`
// for each name. Inputs are matched by name, by the key of the dict around them or by
// NAME__<number>, and otherwise by position. FAILED_PRECONDITION if they do not correspond one to
// one, or if only some of them match by name or number.
absl::StatusOr<std::vector<size_t>> BindInputs(const std::vector<TensorSpec>& inputs,
                                               const std::vector<std::string>& names);

// Binds the configured `outputs` to a package's outputs, `names`. Returns the index in `names` for
// each output. Outputs are matched by name, key or NAME__<number>, and by position if none matches.
// FAILED_PRECONDITION if an output has no match, or if position is ambiguous: all names are keys,
// and `outputs` has fewer elements.
absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<std::string>& names);

// Binds the configured `outputs` to the leaves of a result in the same way, by their paths. Returns
// the index in `leaves` for each output. Numbers and positions do not count None.
// FAILED_PRECONDITION if an output has no match, is None, or has another datatype.
absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<OutputLeaf>& leaves);

// FAILED_PRECONDITION if `output` is not a dense strided tensor, for example sparse or nested. Only
// dense tensors can be sent.
absl::Status CheckDense(absl::string_view name, const at::Tensor& output);

// Reshapes `tensor` from the shape `from` to the shape `to`. A batch dimension before `from` is
// kept. Each -1 of `from` corresponds to a -1 of `to`, in order.
at::Tensor Reshape(const at::Tensor& tensor, const std::vector<int64_t>& from,
                   const std::vector<int64_t>& to);
// Applies TensorSpec::reshape, from the shape that clients see to the model's, and back, or moves
// the batch from dim 0 to TensorSpec::batch_dim, and back. ToModel() then copies, because models
// view contiguous inputs in other shapes. FromModel() does neither to an output with fewer
// dimensions than the spec, and materializes its values (Materialize()).
at::Tensor ToModel(const at::Tensor& input, const TensorSpec& spec);
at::Tensor FromModel(const at::Tensor& output, const TensorSpec& spec);

}  // namespace braid
