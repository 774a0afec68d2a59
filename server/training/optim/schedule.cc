#include "server/training/optim/schedule.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/base/status.h"
#include "server/training/number_checks.h"
#include "server/training/optim/learning_rates.h"
#include "server/training/optim/optimizer_spec.h"
#include "server/training/optim/schedule_spec.h"

namespace braid {
namespace {

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
                                     " parameter groups; expected one for each"));
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

void Schedule::Look(double metric) { AdvancePlateau(std::nullopt, metric); }

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
