#include "server/training/optim/schedule_spec.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/training/number_checks.h"
#include "server/training/optim/optimizer_spec.h"

namespace braid {
namespace {

absl::Status CheckPositive(absl::string_view field, double value) {
  return CheckRange(field, value, value > 0 && std::isfinite(value), "above 0");
}

// Checks a number of steps that a message holds as 0 if it is not given.
absl::Status CheckSteps(const std::string& field, int64_t steps) {
  return steps == 0 ? InvalidField(field, "missing or 0 (expected at least 1)")
                    : CheckAtLeast(field, steps, 1);
}

absl::Status Check(const WarmupSpec& spec) {
  BRAID_RETURN_IF_ERROR(CheckAtLeast("schedule.warmup.steps", spec.steps, 0));
  return CheckRange("schedule.warmup.start_factor", spec.start_factor,
                    spec.start_factor > 0 && spec.start_factor <= 1, "above 0, at most 1");
}

absl::Status Check(std::monostate, const OptimizerSpec&) { return absl::OkStatus(); }

absl::Status Check(const StepScheduleSpec& spec, const OptimizerSpec&) {
  BRAID_RETURN_IF_ERROR(CheckSteps("schedule.step.step_size", spec.step_size));
  return CheckNotNegative("schedule.step.gamma", spec.gamma);
}

absl::Status Check(const MultiStepScheduleSpec& spec, const OptimizerSpec&) {
  for (size_t i = 0; i < spec.milestones.size(); ++i) {
    const std::string field = absl::StrCat("schedule.multi_step.milestones[", i, "]");
    BRAID_RETURN_IF_ERROR(CheckAtLeast(field, spec.milestones[i], 0));
    if (i > 0 && spec.milestones[i] < spec.milestones[i - 1]) {
      return InvalidField(field, absl::StrCat(spec.milestones[i], " after ", spec.milestones[i - 1],
                                              " (expected ascending milestones)"));
    }
  }
  return CheckNotNegative("schedule.multi_step.gamma", spec.gamma);
}

absl::Status Check(const ExponentialScheduleSpec& spec, const OptimizerSpec&) {
  return CheckPositive("schedule.exponential.gamma", spec.gamma);
}

absl::Status Check(const CosineScheduleSpec& spec, const OptimizerSpec&) {
  BRAID_RETURN_IF_ERROR(CheckSteps("schedule.cosine.t_max", spec.t_max));
  return CheckNotNegative("schedule.cosine.eta_min", spec.eta_min);
}

absl::Status CheckCycle(const OneCycleScheduleSpec& spec, const OptimizerSpec& optimizer) {
  const std::string where = "schedule.one_cycle.";
  if (std::holds_alternative<AdagradSpec>(optimizer)) {
    return InvalidField(where + "cycle_momentum", "Adagrad has no momentum (expected false)");
  }
  if (std::holds_alternative<AdamSpec>(optimizer)) {
    BRAID_RETURN_IF_ERROR(CheckBelowOne(where + "base_momentum", spec.base_momentum));
    return CheckBelowOne(where + "max_momentum", spec.max_momentum);
  }
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "base_momentum", spec.base_momentum));
  return CheckPositive(where + "max_momentum", spec.max_momentum);
}

absl::Status Check(const OneCycleScheduleSpec& spec, const OptimizerSpec& optimizer) {
  const std::string where = "schedule.one_cycle.";
  BRAID_RETURN_IF_ERROR(CheckPositive(where + "max_lr", spec.max_lr));
  BRAID_RETURN_IF_ERROR(CheckSteps(where + "total_steps", spec.total_steps));
  BRAID_RETURN_IF_ERROR(CheckRange(where + "pct_start", spec.pct_start,
                                   spec.pct_start >= 0 && spec.pct_start <= 1, "0 to 1"));
  BRAID_RETURN_IF_ERROR(CheckPositive(where + "div_factor", spec.div_factor));
  BRAID_RETURN_IF_ERROR(CheckPositive(where + "final_div_factor", spec.final_div_factor));
  return spec.cycle_momentum ? CheckCycle(spec, optimizer) : absl::OkStatus();
}

absl::Status Check(const PlateauScheduleSpec& spec, const OptimizerSpec&) {
  const std::string where = "schedule.plateau.";
  BRAID_RETURN_IF_ERROR(CheckAtLeast(where + "interval", spec.interval, 1));
  BRAID_RETURN_IF_ERROR(CheckRange(where + "factor", spec.factor,
                                   spec.factor > 0 && spec.factor < 1, "above 0, below 1"));
  BRAID_RETURN_IF_ERROR(CheckAtLeast(where + "patience", spec.patience, 0));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "threshold", spec.threshold));
  BRAID_RETURN_IF_ERROR(CheckAtLeast(where + "cooldown", spec.cooldown, 0));
  BRAID_RETURN_IF_ERROR(CheckNotNegative(where + "min_lr", spec.min_lr));
  return CheckNotNegative(where + "eps", spec.eps);
}

}  // namespace

absl::Status CheckSchedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer) {
  BRAID_RETURN_IF_ERROR(Check(spec.warmup));
  if (spec.warmup.steps > 0 && std::holds_alternative<OneCycleScheduleSpec>(spec.kind)) {
    return InvalidField("schedule.warmup",
                        "cannot be combined with one_cycle, which has its own warmup");
  }
  return std::visit([&](const auto& kind) { return Check(kind, optimizer); }, spec.kind);
}

bool CyclesMomentum(const ScheduleSpec& spec) {
  const auto* cycle = std::get_if<OneCycleScheduleSpec>(&spec.kind);
  return cycle != nullptr && cycle->cycle_momentum;
}

}  // namespace braid
