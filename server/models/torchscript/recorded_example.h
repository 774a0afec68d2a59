// The example of a call that torch.utils.bundled_inputs records in a module.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// The arguments of the first recorded call; fewer than `schema` has where they have defaults.
// FAILED_PRECONDITION if there is none, or one that is no call.
absl::StatusOr<std::vector<c10::IValue>> RecordedExample(torch::jit::Module& module,
                                                         const c10::FunctionSchema& schema);

// A tensor of it, with the name that PlanArguments() knows it by.
struct ExampleLeaf {
  std::string name;
  at::Tensor value;
};

// The tensors of `example`. FAILED_PRECONDITION if there is none, or if it holds anything else, but
// for None and for int, bool and float arguments.
absl::StatusOr<std::vector<ExampleLeaf>> TensorsOf(const std::vector<c10::IValue>& example,
                                                   const c10::FunctionSchema& schema);

}  // namespace braid
