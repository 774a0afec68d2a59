// Deadline of a drain, which a second signal shortens.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace braid {

// Starts at construction. Thread-compatible.
class DrainTime {
 public:
  // Longest remaining time after `hurry` is notified.
  static constexpr absl::Duration kHurryTime = absl::Seconds(1);

  // hurry: notified to shorten the drain; outlives it.
  DrainTime(absl::Duration time, const absl::Notification* hurry);

  // Blocks until wait(timeout) returns true; false after the deadline. `wait` must block for at
  // most its timeout. Calls report(time left) every 5 seconds.
  bool Await(absl::FunctionRef<bool(absl::Duration)> wait,
             absl::FunctionRef<void(absl::Duration)> report);

 private:
  // Remaining time.
  absl::Duration Left();

  const absl::Notification* const hurry_;
  absl::Time end_;
  bool hurried_ = false;
};

}  // namespace braid
