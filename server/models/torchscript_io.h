// How a TorchScript module's arguments and results meet the names of its configuration.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// A tensor of a module's result: a tensor, or a tuple, list or dict of them, nested.
struct OutputLeaf {
  // The keys on the way to it, joined by '.'; empty where there is no dict on the way.
  std::string path;
  at::Tensor value;
};

// All tensors of `result`, in order. FAILED_PRECONDITION if it holds anything else.
absl::StatusOr<std::vector<OutputLeaf>> Flatten(const c10::IValue& result);

// The names of forward's arguments, without self, that every call has to give. FAILED_PRECONDITION
// if one of them takes no tensor.
absl::StatusOr<std::vector<std::string>> RequiredArguments(const c10::FunctionSchema& schema);

// For each position of forward's arguments the index of the input in `inputs`: by the argument's
// name, by the number in NAME__<number>, or else by the order. FAILED_PRECONDITION if that fits no
// call.
absl::StatusOr<std::vector<size_t>> BindInputs(const std::vector<TensorSpec>& inputs,
                                               const c10::FunctionSchema& schema);

// For each of `outputs` the index of its leaf: by path, by NAME__<number>, or else by the order.
// FAILED_PRECONDITION if there is none or its datatype differs.
absl::StatusOr<std::vector<size_t>> BindOutputs(const std::vector<TensorSpec>& outputs,
                                                const std::vector<OutputLeaf>& leaves);

}  // namespace braid
