// What may be asked of a schedule.
#pragma once

#include "absl/status/status.h"
#include "server/training/trainer_spec.h"

namespace braid {

// INVALID_ARGUMENT naming the field ("schedule.cosine.t_max") that is out of range, or that
// `optimizer` has no use for.
absl::Status CheckSchedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer);

// Whether the schedule sets momentum, or beta1, itself.
bool CyclesMomentum(const ScheduleSpec& spec);

}  // namespace braid
