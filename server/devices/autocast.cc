#include "server/devices/autocast.h"

#include "ATen/autocast_mode.h"

namespace braid {

AutocastGuard::AutocastGuard(c10::Device device, std::optional<c10::ScalarType> type)
    : kind_(device.type()) {
  if (type) {
    outer_ = {at::autocast::is_autocast_enabled(kind_), at::autocast::get_autocast_dtype(kind_),
              at::autocast::is_autocast_cache_enabled()};
    Apply({/*enabled=*/true, *type, /*cache=*/false});
  }
}

AutocastGuard::~AutocastGuard() {
  if (outer_) {
    Apply(*outer_);
  }
}

void AutocastGuard::Apply(const Settings& settings) const {
  at::autocast::set_autocast_enabled(kind_, settings.enabled);
  at::autocast::set_autocast_dtype(kind_, settings.type);
  at::autocast::set_autocast_cache_enabled(settings.cache);
}

}  // namespace braid
