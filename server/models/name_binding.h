// How names of a configuration meet the tensors that a model takes or returns.
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

// A tensor of a model's result: a tensor, or a tuple, list or dict of them, nested.
struct OutputLeaf {
  // The keys on the way to it, joined by '.'; empty where there is no dict on the way.
  std::string path;
  at::Tensor value;  // undefined where the model returns a None in its place
};

// For each of `specs` the number in NAME__<number>, if all are so named.
std::optional<std::vector<size_t>> NumberedPositions(const std::vector<TensorSpec>& specs);

// For each of `names`, the inputs of a package, the index of the one of `inputs` that it is: by
// name, by the key of a dict that it is in, by NAME__<number>, or else by the order.
// FAILED_PRECONDITION if there is not one for each, or if some are so named and others are not.
absl::StatusOr<std::vector<size_t>> BindInputs(const std::vector<TensorSpec>& inputs,
                                               const std::vector<std::string>& names);

// For each of `outputs` its place in `names`: by name or key, by NAME__<number>, or else, where
// none has such a name, by the order. FAILED_PRECONDITION if one has none, or if fewer than there
// are keys are no keys.
absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<std::string>& names);

// For each of `outputs` the index of its leaf, found likewise by its path; the number and the order
// count no None. FAILED_PRECONDITION if there is none, if it is None or its datatype differs.
absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<OutputLeaf>& leaves);

// FAILED_PRECONDITION if `output` is sparse, nested, or otherwise not laid out by strides: it has
// no bytes that could be sent.
absl::Status CheckDense(absl::string_view name, const at::Tensor& output);

// `tensor`, whose shape is `from` with a batch dimension or without, in the shape `to`. A size that
// `from` leaves open goes to the one that `to` does.
at::Tensor Reshape(const at::Tensor& tensor, const std::vector<int64_t>& from,
                   const std::vector<int64_t>& to);
// From the shape that clients see to the one that the model has, as TensorSpec::reshape asks for,
// and back. An output of fewer dimensions than that stays as it is; its memory holds its values
// (Materialize()).
at::Tensor ToModel(const at::Tensor& input, const TensorSpec& spec);
at::Tensor FromModel(const at::Tensor& output, const TensorSpec& spec);

}  // namespace braid
