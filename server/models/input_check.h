// Whether a request's tensors are what the model takes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"

namespace braid {

// Dim 0 of the inputs of a batched model, as CheckInputs() gave them.
int64_t RowsOf(const std::vector<HostTensor>& inputs);

// The inputs in the order of `config.inputs`. INVALID_ARGUMENT, naming the field as `field`[i].…,
// for a name that is unknown, missing or there twice, a wrong datatype, rank or dimension, no rows,
// a value outside an input's range, or inputs that differ in rows. A scalar that is not there is
// its default, if it has one. The byte counts are right already.
absl::StatusOr<std::vector<HostTensor>> CheckInputs(const ModelConfig& config,
                                                    std::vector<HostTensor> tensors,
                                                    absl::string_view field);

}  // namespace braid
