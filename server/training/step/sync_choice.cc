#include "server/training/step/sync_choice.h"

#include <algorithm>

namespace braid {
namespace {

// The first ones warm up caches and allocators.
constexpr int64_t kWarmUp = 2;
constexpr int64_t kTrials = 8;  // of each

}  // namespace

bool SyncChoice::all_reduce() const {
  if (!measuring()) {
    return mode_ != SyncMode::kReduceBroadcast;
  }
  if (updates_ < kWarmUp + 2 * kTrials) {
    return updates_ % 2 == 1;
  }
  return shortest_[1] < shortest_[0];
}

void SyncChoice::Record(absl::Duration time) {
  if (measuring() && updates_ >= kWarmUp && updates_ < kWarmUp + 2 * kTrials) {
    absl::Duration& shortest = shortest_[all_reduce() ? 1 : 0];
    shortest = std::min(shortest, time);
  }
  ++updates_;
}

}  // namespace braid
