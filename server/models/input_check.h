// Checks the tensors of a request against the model's inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"

namespace braid {

// True if the dimension may have this size.
bool Fits(int64_t size, const VariableDim& dim);

// Returns the largest size of the dimension, or nullopt if there is no limit.
std::optional<int64_t> LargestSize(const VariableDim& dim);

// Returns the number of rows of a batched model's `inputs`, a result of CheckInputs().
int64_t RowsOf(const std::vector<HostTensor>& inputs);

// Returns INVALID_ARGUMENT for an input of a request that the model does not have. `field`: of the
// input's name.
absl::Status UnknownInput(absl::string_view field, absl::string_view model, absl::string_view input,
                          const std::vector<TensorSpec>& inputs);

// Returns `tensors` in the order of `config.inputs`, with default values for scalars that are not
// given. The batch is dim 0 of the tensors: call BatchToFront() for those of clients. The caller
// has checked that byte counts match shapes.
//
// Errors show shapes and dims as clients send them (TensorSpec::batch_dim).
// INVALID_ARGUMENT naming the field, `field`[i].name for example, for an unknown, missing or
// duplicate name, a wrong datatype, rank or dimension, no rows, a value outside an input's range,
// inputs with different numbers of rows, or dimensions that vary together but have other sizes.
absl::StatusOr<std::vector<HostTensor>> CheckInputs(const ModelConfig& config,
                                                    std::vector<HostTensor> tensors,
                                                    absl::string_view field);

}  // namespace braid
