// Derives the configuration of a TorchScript model that has no config.pbtxt.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/models/model_config.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Runs the example that torch.utils.bundled_inputs recorded in `module`. Inputs have the names of
// PlanArguments() and the datatypes and shapes of the example; int, bool and float arguments are
// scalar inputs. Outputs are named by the keys of a dict, otherwise output__0, output__1, …, not
// counting None. The model is batched if inputs with twice the rows give outputs with twice the
// rows. FAILED_PRECONDITION if no example is recorded or its result cannot be served.
absl::StatusOr<ModelConfig> DeriveConfig(torch::jit::Module& module, const std::string& name);

}  // namespace braid
