// Builds the arguments of a TorchScript forward() from the inputs of a configuration.
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

// Plan for an argument of forward(), or for a part of a tuple, list or dict. Immutable.
struct ArgumentPlan {
  enum class Kind { kTensor, kScalar, kTuple, kList, kDict, kConstant };
  Kind kind = Kind::kConstant;
  c10::TypePtr type = nullptr;
  size_t input = 0;                    // kTensor, kScalar: index of the input
  std::vector<std::string> keys = {};  // names of `parts`
  std::vector<ArgumentPlan> parts = {};
  c10::IValue constant = {};  // kConstant: value of an argument without an input
};

// Returns a plan for each argument of forward(), except self.
//
// Inputs are matched by name: the argument, then keys, fields or indices, joined by '.', as in "x",
// "pair.0" and "batch.mask". If no name matches, inputs are matched by position, given by
// NAME__<number> or their order; then the tensors of a dict are named by its keys. A list has as
// many elements as there are inputs for it. An argument without an input gets its default value,
// or None. FAILED_PRECONDITION if no call fits `inputs`, or if several do.
absl::StatusOr<std::vector<ArgumentPlan>> PlanArguments(const std::vector<TensorSpec>& inputs,
                                                        const c10::FunctionSchema& schema);

// Builds an argument. inputs: in the order of PlanArguments()' `inputs`.
c10::IValue MakeArgument(const ArgumentPlan& plan, const std::vector<at::Tensor>& inputs);

// Returns the int, bool and float arguments of forward(). Requests pass them as parameters.
std::vector<TensorSpec> ScalarArguments(const c10::FunctionSchema& schema);

// Returns the name of element `index`: the field of a NamedTuple, otherwise the index.
std::string PartName(const c10::TupleType& tuple, size_t index);

// Formats the signature for messages: "forward(x, y)".
std::string CallText(const c10::FunctionSchema& schema);

}  // namespace braid
