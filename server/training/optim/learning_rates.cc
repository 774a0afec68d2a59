#include "server/training/optim/learning_rates.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace braid {
namespace {

constexpr double kPi = 3.14159265358979323846;

double Passed(const MultiStepScheduleSpec& spec, int64_t t, double lr) {
  const auto times = std::count(spec.milestones.begin(), spec.milestones.end(), t);
  return times == 0 ? lr : lr * std::pow(spec.gamma, static_cast<double>(times));
}

// First(kind, base): of the schedule's own update 0.
template <typename Kind>
double First(const Kind&, double base) {
  return base;
}
double First(const MultiStepScheduleSpec& spec, double base) { return Passed(spec, 0, base); }
double First(const OneCycleScheduleSpec& spec, double) { return OneCycleAt(spec, 0).lr; }

// Next(kind, t, lr, base): of the schedule's own update `t` > 0, from `lr`, that of the one before.
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
    // At the lowest point there is no ratio to go on by.
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

}  // namespace

double FirstLr(const ScheduleSpec& spec, double base) {
  return spec.warmup.steps > 0 ? base * spec.warmup.start_factor : FirstOfKind(spec, base);
}

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
  // A phase without a length is at its end.
  const double share = phase.end == begin ? 1 : (now - begin) / (phase.end - begin);
  return {Anneal(phase.from.lr, phase.to.lr, share, spec.linear),
          Anneal(phase.from.momentum, phase.to.momentum, share, spec.linear)};
}

}  // namespace braid
