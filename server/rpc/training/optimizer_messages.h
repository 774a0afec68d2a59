// How parameters are updated, on the wire and in the engine.
#pragma once

#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"
#include "server/training/trainer_spec.h"

namespace braid {

// With the defaults that the wire documents. INVALID_ARGUMENT if none is chosen.
absl::StatusOr<OptimizerSpec> ReadOptimizer(const braid::v1::Optimizer& message);
void WriteOptimizer(const OptimizerSpec& spec, braid::v1::Optimizer* message);

ScheduleSpec ReadSchedule(const braid::v1::Schedule& message);
void WriteSchedule(const ScheduleSpec& spec, braid::v1::Schedule* message);

GradScalerSpec ReadGradScaler(const braid::v1::GradScaler& message);
void WriteGradScaler(const GradScalerSpec& spec, braid::v1::GradScaler* message);

}  // namespace braid
