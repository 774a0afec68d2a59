// How the inputs of a configuration become the arguments of a TorchScript forward().
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "absl/status/statusor.h"
#include "server/models/model_config.h"

namespace braid {

// An argument, or a part of one.
struct ArgumentPlan {
  enum class Kind { kTensor, kScalar, kTuple, kList, kDict, kConstant };
  Kind kind = Kind::kConstant;
  c10::TypePtr type = nullptr;
  size_t input = 0;  // of a tensor or scalar: its place among the inputs
  std::vector<std::string> keys = {};
  std::vector<ArgumentPlan> parts = {};
  c10::IValue constant = {};  // what an argument is that no input is for
};

// A plan for each of forward's arguments, self left out. Names of tensors are the argument's, then
// keys, fields or indices, joined by '.': "x", "pair.0", "batch.mask". If the names are none of
// those, the tensors are in the order of the arguments, by NAME__<number> or as they come, and
// those of a dict have its keys for names. A list is as long as there are inputs for it. An
// argument that no input is for is its default, or None. FAILED_PRECONDITION if that fits no call.
absl::StatusOr<std::vector<ArgumentPlan>> PlanArguments(const std::vector<TensorSpec>& inputs,
                                                        const c10::FunctionSchema& schema);

// What `plan` makes of `inputs`, which are in the order that it was made for.
c10::IValue MakeArgument(const ArgumentPlan& plan, const std::vector<at::Tensor>& inputs);

// forward's int, bool and float arguments, which a request gives as parameters.
std::vector<TensorSpec> ScalarArguments(const c10::FunctionSchema& schema);

// The name of a tuple's part `index`: a field's where it is a NamedTuple.
std::string PartName(const c10::TupleType& tuple, size_t index);

// "forward(x, y)", for messages.
std::string CallText(const c10::FunctionSchema& schema);

}  // namespace braid
