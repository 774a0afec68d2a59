// A model's configuration from the model itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Inputs by the names that PlanArguments() gives them, with the datatypes and shapes of the
// recorded example, and forward's int, bool and float arguments; outputs by running it: by key for
// a dict, else output__0, output__1, …, counted without what is None. The model is batched if twice
// the rows give twice the rows in every output. FAILED_PRECONDITION if no example is recorded.
absl::StatusOr<ModelConfig> DeriveConfig(torch::jit::Module& module, const std::string& name);

}  // namespace braid
