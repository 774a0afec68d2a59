// Checks of the configuration of an optimizer.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Returns INVALID_ARGUMENT naming a field ("optimizer.sgd.lr") that is out of range.
absl::Status CheckOptimizer(const OptimizerSpec& spec);

// Returns "SGD", "Adam", "AdamW", "RMSprop" or "Adagrad".
absl::string_view OptimizerName(const OptimizerSpec& spec);
// Returns true for SGD and RMSprop.
bool TakesMomentum(const OptimizerSpec& spec);

}  // namespace braid
