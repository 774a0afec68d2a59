#include "server/admission/drain_time.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace braid {
namespace {

// Interval for checking `hurry`.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kReportInterval = absl::Seconds(5);

}  // namespace

DrainTime::DrainTime(absl::Duration time, const absl::Notification* hurry)
    : hurry_(hurry), end_(absl::Now() + time) {}

absl::Duration DrainTime::Left() {
  const absl::Time now = absl::Now();
  if (!hurried_ && hurry_->HasBeenNotified()) {
    hurried_ = true;
    end_ = std::min(end_, now + kHurryTime);
  }
  return std::max(end_ - now, absl::ZeroDuration());
}

bool DrainTime::Await(absl::FunctionRef<bool(absl::Duration)> wait,
                      absl::FunctionRef<void(absl::Duration)> report) {
  absl::Time reported = absl::Now();
  while (true) {
    const absl::Duration left = Left();
    if (wait(std::min(left, kPollInterval))) {
      return true;
    }
    if (left == absl::ZeroDuration()) {
      return false;
    }
    if (absl::Now() - reported >= kReportInterval) {
      reported = absl::Now();
      report(Left());
    }
  }
}

}  // namespace braid
