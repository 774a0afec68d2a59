// How a learning rate goes on from update to update, by the recursions of torch.optim.lr_scheduler:
// from the same numbers come, bit for bit, the same numbers. Pure functions.
#pragma once

#include <cstdint>

#include "server/training/trainer_spec.h"

namespace braid {

// Of update 0, from a group's own learning rate.
double FirstLr(const ScheduleSpec& spec, double base);
// Of update `t` > 0, from `previous`, that of update t - 1.
double NextLr(const ScheduleSpec& spec, int64_t t, double previous, double base);

struct OneCyclePoint {
  double lr = 0;
  double momentum = 0;
};
// Of update `t`, which is below total_steps.
OneCyclePoint OneCycleAt(const OneCycleScheduleSpec& spec, int64_t t);

}  // namespace braid
