#include "server/training/optim/plateau.h"

#include <algorithm>
#include <limits>

#include "server/training/number_checks.h"

namespace braid {

Plateau::Plateau(const PlateauScheduleSpec& spec) : spec_(spec) { Forget(); }

bool Plateau::Advance(std::optional<double> loss, std::optional<double> metric) {
  if (metric) {
    if (!by_metric_) {
      Forget();
      by_metric_ = true;
    }
    return Observe(*metric);
  }
  if (by_metric_ || !loss) {
    return false;
  }
  sum_ += *loss;
  ++losses_;
  if (losses_ < spec_.interval) {
    return false;
  }
  const double mean = sum_ / static_cast<double>(losses_);
  sum_ = 0;
  losses_ = 0;
  return Observe(mean);
}

double Plateau::Reduced(double lr) const {
  const double reduced = std::max(lr * spec_.factor, spec_.min_lr);
  return lr - reduced > spec_.eps ? reduced : lr;
}

bool Plateau::Observe(double value) {
  if (Better(value)) {
    best_ = value;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ <= spec_.patience) {
    return false;
  }
  cooldown_ = spec_.cooldown;
  bad_ = 0;
  return true;
}

bool Plateau::Better(double value) const {
  if (spec_.absolute_threshold) {
    return spec_.maximize ? value > best_ + spec_.threshold : value < best_ - spec_.threshold;
  }
  return spec_.maximize ? value > best_ * (spec_.threshold + 1.0)
                        : value < best_ * (1.0 - spec_.threshold);
}

void Plateau::Forget() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  best_ = spec_.maximize ? -kInfinity : kInfinity;
  bad_ = 0;
  cooldown_ = 0;
  sum_ = 0;
  losses_ = 0;
}

std::vector<double> Plateau::state() const {
  return {best_, static_cast<double>(bad_),    static_cast<double>(cooldown_),
          sum_,  static_cast<double>(losses_), by_metric_ ? 1.0 : 0.0};
}

absl::Status Plateau::Load(absl::Span<const double> state) {
  absl::Status damaged = absl::DataLossError("a plateau schedule's state is damaged");
  if (state.size() != 6) {
    return damaged;
  }
  const std::optional<int64_t> bad = AsCount(state[1]);
  const std::optional<int64_t> cooldown = AsCount(state[2]);
  const std::optional<int64_t> losses = AsCount(state[4]);
  if (!bad || !cooldown || !losses) {
    return damaged;
  }
  best_ = state[0];
  bad_ = *bad;
  cooldown_ = *cooldown;
  sum_ = state[3];
  losses_ = *losses;
  by_metric_ = state[5] != 0;
  return absl::OkStatus();
}

}  // namespace braid
