// Checks of the configuration of a schedule.
#pragma once

#include "absl/status/status.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Returns INVALID_ARGUMENT naming a field ("schedule.cosine.t_max") that is out of range or does
// not apply to `optimizer`.
absl::Status CheckSchedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer);

// Returns true if the schedule sets the momentum, or beta1.
bool CyclesMomentum(const ScheduleSpec& spec);

}  // namespace braid
