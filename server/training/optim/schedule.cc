#include "server/training/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/base/status.h"
#include "server/training/number_checks.h"
#include "server/training/optim/optimizer_spec.h"
#include "server/training/optim/schedule_spec.h"

namespace braid {
namespace {

// Learning rates by the recursive formulas of torch.optim.lr_scheduler, bit for bit.
struct OneCyclePoint {
  double lr = 0;
  double momentum = 0;
};
// Returns the values of update `t`, which is below total_steps.
OneCyclePoint OneCycleAt(const OneCycleScheduleSpec& spec, int64_t t);

constexpr double kPi = 3.14159265358979323846;

double Passed(const MultiStepScheduleSpec& spec, int64_t t, double lr) {
  const auto times = std::count(spec.milestones.begin(), spec.milestones.end(), t);
  return times == 0 ? lr : lr * std::pow(spec.gamma, static_cast<double>(times));
}

// First(kind, base) returns the rate of the schedule's own update 0.
template <typename Kind>
double First(const Kind&, double base) {
  return base;
}
double First(const MultiStepScheduleSpec& spec, double base) { return Passed(spec, 0, base); }
double First(const OneCycleScheduleSpec& spec, double) { return OneCycleAt(spec, 0).lr; }

// Next(kind, t, lr, base) returns the rate of the schedule's own update `t` > 0, from the previous
// rate `lr`.
double Next(std::monostate, int64_t, double lr, double) { return lr; }
double Next(const PlateauScheduleSpec&, int64_t, double lr, double) { return lr; }

double Next(const StepScheduleSpec& spec, int64_t t, double lr, double) {
  return t % spec.step_size == 0 ? lr * spec.gamma : lr;
}

double Next(const MultiStepScheduleSpec& spec, int64_t t, double lr, double) {
  return Passed(spec, t, lr);
}

double Next(const ExponentialScheduleSpec& spec, int64_t, double lr, double) {
  return lr * spec.gamma;
}

double Next(const CosineScheduleSpec& spec, int64_t t, double lr, double base) {
  const auto period = static_cast<double>(spec.t_max);
  if ((t - 1 - spec.t_max) % (2 * spec.t_max) == 0) {
    // At the minimum the ratio of the formula is undefined.
    return lr + (base - spec.eta_min) * (1 - std::cos(kPi / period)) / 2;
  }
  const auto height = [&](int64_t at) {
    return 1 + std::cos(kPi * static_cast<double>(at) / period);
  };
  return height(t) / height(t - 1) * (lr - spec.eta_min) + spec.eta_min;
}

double Next(const OneCycleScheduleSpec& spec, int64_t t, double, double) {
  return OneCycleAt(spec, t).lr;
}

double FirstOfKind(const ScheduleSpec& spec, double base) {
  return std::visit([&](const auto& kind) { return First(kind, base); }, spec.kind);
}

struct Phase {
  double end;  // in updates
  OneCyclePoint from;
  OneCyclePoint to;
};

std::vector<Phase> PhasesOf(const OneCycleScheduleSpec& spec) {
  const double first_lr = spec.max_lr / spec.div_factor;
  const OneCyclePoint low = {first_lr, spec.max_momentum};
  const OneCyclePoint high = {spec.max_lr, spec.base_momentum};
  const OneCyclePoint last = {first_lr / spec.final_div_factor, spec.max_momentum};
  const auto steps = static_cast<double>(spec.total_steps);
  if (spec.three_phase) {
    return {{spec.pct_start * steps - 1, low, high},
            {2 * spec.pct_start * steps - 2, high, low},
            {steps - 1, low, last}};
  }
  return {{spec.pct_start * steps - 1, low, high}, {steps - 1, high, last}};
}

double Anneal(double from, double to, double share, bool linear) {
  if (linear) {
    return (to - from) * share + from;
  }
  return to + (from - to) / 2.0 * (std::cos(kPi * share) + 1);
}

// Returns the learning rate of update 0, from a group's own learning rate.
double FirstLr(const ScheduleSpec& spec, double base) {
  return spec.warmup.steps > 0 ? base * spec.warmup.start_factor : FirstOfKind(spec, base);
}

// Returns the learning rate of update `t` > 0, from `previous`, the one of update t - 1.
double NextLr(const ScheduleSpec& spec, int64_t t, double previous, double base) {
  const int64_t warm = spec.warmup.steps;
  if (t == warm) {
    return FirstOfKind(spec, base);
  }
  if (t < warm) {
    const double start = spec.warmup.start_factor;
    return previous * (1.0 + (1.0 - start) / (static_cast<double>(warm) * start +
                                              static_cast<double>(t - 1) * (1.0 - start)));
  }
  return std::visit([&](const auto& kind) { return Next(kind, t - warm, previous, base); },
                    spec.kind);
}

OneCyclePoint OneCycleAt(const OneCycleScheduleSpec& spec, int64_t t) {
  const auto now = static_cast<double>(t);
  const std::vector<Phase> phases = PhasesOf(spec);
  double begin = 0;
  size_t i = 0;
  while (i + 1 < phases.size() && now > phases[i].end) {
    begin = phases[i].end;
    ++i;
  }
  const Phase& phase = phases[i];
  // A phase of length 0 is at its end.
  const double share = phase.end == begin ? 1 : (now - begin) / (phase.end - begin);
  return {Anneal(phase.from.lr, phase.to.lr, share, spec.linear),
          Anneal(phase.from.momentum, phase.to.momentum, share, spec.linear)};
}

double MomentumOf(const SgdSpec& spec) { return spec.momentum; }
double MomentumOf(const AdamSpec& spec) { return spec.beta1; }
double MomentumOf(const RmsPropSpec& spec) { return spec.momentum; }
double MomentumOf(const AdagradSpec&) { return 0; }

GroupValues ValuesOf(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> GroupValues {
        return {spec.lr, spec.weight_decay, MomentumOf(spec)};
      },
      optimizer);
}

std::string NoMomentum(const OptimizerSpec& optimizer) {
  return absl::StrCat("is for SGD and RMSprop; ", OptimizerName(optimizer), " has none");
}

}  // namespace

absl::StatusOr<Schedule> Schedule::Create(const ScheduleSpec& spec, const OptimizerSpec& optimizer,
                                          const ParameterGroups& groups) {
  BRAID_RETURN_IF_ERROR(CheckSchedule(spec, optimizer));
  for (size_t g = 0; g < groups.specs().size(); ++g) {
    if (groups.specs()[g].momentum && !TakesMomentum(optimizer)) {
      return InvalidField(absl::StrCat("parameter_groups[", g, "].momentum"),
                          NoMomentum(optimizer));
    }
  }
  return Schedule(spec, optimizer, groups);
}

Schedule::Schedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer,
                   const ParameterGroups& groups)
    : spec_(spec), optimizer_(optimizer), groups_(groups.specs()) {
  base_.push_back(ValuesOf(optimizer));
  for (const ParameterGroupSpec& group : groups_) {
    const GroupValues& rest = base_.front();
    base_.push_back({group.lr.value_or(rest.lr), group.weight_decay.value_or(rest.weight_decay),
                     group.momentum.value_or(rest.momentum)});
  }
  for (GroupValues& base : base_) {
    if (CyclesMomentum(spec_)) {
      base.momentum = std::get<OneCycleScheduleSpec>(spec_.kind).max_momentum;
    }
    lrs_.push_back(FirstLr(spec_, base.lr));
  }
  if (const auto* plateau = std::get_if<PlateauScheduleSpec>(&spec_.kind)) {
    plateau_.emplace(*plateau);
  }
}

absl::StatusOr<std::vector<GroupValues>> Schedule::Next(const HyperParameters& changes) const {
  BRAID_RETURN_IF_ERROR(Check(changes));
  const auto* cycle = std::get_if<OneCycleScheduleSpec>(&spec_.kind);
  if (cycle != nullptr && updates_ >= cycle->total_steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("the one-cycle schedule has ended, after ", cycle->total_steps, " updates"));
  }
  std::vector<GroupValues> values = base_;
  for (size_t g = 0; g < values.size(); ++g) {
    values[g].lr = lrs_[g];
    if (cycle != nullptr && cycle->cycle_momentum) {
      values[g].momentum = OneCycleAt(*cycle, updates_).momentum;
    }
    const ParameterGroupSpec own = g == 0 ? ParameterGroupSpec() : groups_[g - 1];
    if (!own.lr) {
      values[g].lr = changes.lr.value_or(values[g].lr);
    }
    if (!own.weight_decay) {
      values[g].weight_decay = changes.weight_decay.value_or(values[g].weight_decay);
    }
    if (!own.momentum) {
      values[g].momentum = changes.momentum.value_or(values[g].momentum);
    }
    if (g > 0 && !changes.group_lr.empty()) {
      values[g].lr = changes.group_lr[g - 1];
    }
  }
  return values;
}

absl::Status Schedule::Check(const HyperParameters& changes) const {
  BRAID_RETURN_IF_ERROR(CheckNotNegative("hyper_parameters.lr", changes.lr.value_or(0)));
  BRAID_RETURN_IF_ERROR(
      CheckNotNegative("hyper_parameters.weight_decay", changes.weight_decay.value_or(0)));
  if (changes.momentum) {
    BRAID_RETURN_IF_ERROR(CheckMomentum(*changes.momentum));
  }
  if (!changes.group_lr.empty() && changes.group_lr.size() != groups_.size()) {
    return InvalidField("hyper_parameters.group_lr",
                        absl::StrCat(changes.group_lr.size(), " numbers for ", groups_.size(),
                                     " parameter groups (expected one for each)"));
  }
  for (size_t g = 0; g < changes.group_lr.size(); ++g) {
    BRAID_RETURN_IF_ERROR(
        CheckNotNegative(absl::StrCat("hyper_parameters.group_lr[", g, "]"), changes.group_lr[g]));
  }
  if (changes.metric && !plateau_) {
    return InvalidField("hyper_parameters.metric", "is for a plateau schedule; there is none");
  }
  const double metric = changes.metric.value_or(0);
  return CheckRange("hyper_parameters.metric", metric, std::isfinite(metric), "a finite number");
}

absl::Status Schedule::CheckMomentum(double momentum) const {
  constexpr char kField[] = "hyper_parameters.momentum";
  if (!TakesMomentum(optimizer_)) {
    return InvalidField(kField, NoMomentum(optimizer_));
  }
  BRAID_RETURN_IF_ERROR(CheckNotNegative(kField, momentum));
  const double base = base_.front().momentum;
  if ((base == 0) != (momentum == 0)) {
    return InvalidField(kField, absl::StrCat(momentum, " for an optimizer created with momentum ",
                                             base, ": it cannot be turned on or off later"));
  }
  return absl::OkStatus();
}

void Schedule::AdvancePlateau(std::optional<double> loss, std::optional<double> metric) {
  const bool warm = updates_ >= spec_.warmup.steps;
  if (plateau_ && warm && plateau_->Advance(loss, metric)) {
    for (double& lr : lrs_) {
      lr = plateau_->Reduced(lr);
    }
  }
}

void Schedule::RecordMetric(double metric) { AdvancePlateau(std::nullopt, metric); }

void Schedule::Advance(std::optional<double> loss, std::optional<double> metric) {
  AdvancePlateau(loss, metric);
  ++updates_;
  for (size_t g = 0; g < lrs_.size(); ++g) {
    lrs_[g] = NextLr(spec_, updates_, lrs_[g], base_[g].lr);
  }
}

std::vector<double> Schedule::state() const {
  std::vector<double> state = {static_cast<double>(updates_)};
  state.insert(state.end(), lrs_.begin(), lrs_.end());
  if (plateau_) {
    const std::vector<double> plateau = plateau_->state();
    state.insert(state.end(), plateau.begin(), plateau.end());
  }
  return state;
}

absl::Status Schedule::Load(const std::vector<double>& state) {
  const size_t own = 1 + lrs_.size();
  const std::optional<int64_t> updates = state.empty() ? std::nullopt : AsCount(state[0]);
  if (!updates || state.size() < own || (!plateau_ && state.size() > own)) {
    return absl::DataLossError("a schedule's state is damaged");
  }
  if (plateau_) {
    BRAID_RETURN_IF_ERROR(plateau_->Load(absl::MakeConstSpan(state).subspan(own)));
  }
  updates_ = *updates;
  lrs_.assign(state.begin() + 1, state.begin() + static_cast<std::ptrdiff_t>(own));
  return absl::OkStatus();
}

}  // namespace braid
