#include "server/training/step/grad_scaler.h"

#include <cmath>
#include <limits>
#include <optional>

#include "server/base/status.h"
#include "server/training/number_checks.h"

namespace braid {
namespace {

constexpr double kMaxScale = std::numeric_limits<float>::max();

}  // namespace

absl::Status CheckGradScaler(const GradScalerSpec& spec) {
  BRAID_RETURN_IF_ERROR(CheckRange("grad_scaler.init_scale", spec.init_scale,
                                   spec.init_scale > 0 && spec.init_scale <= kMaxScale,
                                   "above 0, a float32"));
  BRAID_RETURN_IF_ERROR(CheckRange("grad_scaler.growth_factor", spec.growth_factor,
                                   spec.growth_factor > 1 && std::isfinite(spec.growth_factor),
                                   "above 1"));
  BRAID_RETURN_IF_ERROR(CheckRange("grad_scaler.backoff_factor", spec.backoff_factor,
                                   spec.backoff_factor > 0 && spec.backoff_factor < 1,
                                   "above 0, below 1"));
  return CheckAtLeast("grad_scaler.growth_interval", spec.growth_interval, 1);
}

GradScaler::GradScaler(const GradScalerSpec& spec)
    : spec_(spec), scale_(static_cast<float>(spec.init_scale)) {}

void GradScaler::Update(bool found_inf) {
  if (found_inf) {
    scale_ = static_cast<float>(scale_ * spec_.backoff_factor);
    good_ = 0;
    return;
  }
  ++good_;
  if (good_ < spec_.growth_interval) {
    return;
  }
  good_ = 0;
  const double grown = scale_ * spec_.growth_factor;
  if (grown <= kMaxScale) {
    scale_ = static_cast<float>(grown);
  }
}

std::vector<double> GradScaler::state() const { return {scale_, static_cast<double>(good_)}; }

absl::Status GradScaler::Load(const std::vector<double>& state) {
  const std::optional<int64_t> good = state.size() == 2 ? AsCount(state[1]) : std::nullopt;
  if (!good || !(state[0] >= 0 && state[0] <= kMaxScale)) {
    return absl::DataLossError("a gradient scaler's state is damaged");
  }
  scale_ = static_cast<float>(state[0]);
  good_ = *good;
  return absl::OkStatus();
}

}  // namespace braid
