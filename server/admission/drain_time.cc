#include "server/admission/drain_time.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace braid {
namespace {

// How long a hurry may go unnoticed.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kTell = absl::Seconds(5);

}  // namespace

DrainTime::DrainTime(absl::Duration time, const absl::Notification* hurry)
    : hurry_(hurry), end_(absl::Now() + time) {}

absl::Duration DrainTime::Left() {
  const absl::Time now = absl::Now();
  if (!hurried_ && hurry_->HasBeenNotified()) {
    hurried_ = true;
    end_ = std::min(end_, now + kHurried);
  }
  return std::max(end_ - now, absl::ZeroDuration());
}

bool DrainTime::Await(absl::FunctionRef<bool(absl::Duration)> wait,
                      absl::FunctionRef<void(absl::Duration)> tell) {
  absl::Time told = absl::Now();
  while (true) {
    const absl::Duration left = Left();
    if (wait(std::min(left, kLook))) {
      return true;
    }
    if (left == absl::ZeroDuration()) {
      return false;
    }
    if (absl::Now() - told >= kTell) {
      told = absl::Now();
      tell(Left());
    }
  }
}

}  // namespace braid
