// For what another thread will do in its own time.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace braid {

// Whether `condition` comes to hold; asked until it does, for half a minute at most.
template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    if (absl::Now() > deadline) {
      return false;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace braid
