// What may be asked of an optimizer.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("optimizer.sgd.lr") that is out of range.
absl::Status CheckOptimizer(const OptimizerSpec& spec);

// "SGD", "Adam", "AdamW", "RMSprop" or "Adagrad".
absl::string_view OptimizerName(const OptimizerSpec& spec);
// SGD and RMSprop do.
bool TakesMomentum(const OptimizerSpec& spec);

}  // namespace braid
