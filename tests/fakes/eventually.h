// Waits for other threads.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace braid {

// Polls until `condition` holds, for at most 30 s. Returns true if it holds.
template <typename Condition>
bool Eventually(const Condition& condition) {
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
