// How long a drain may take.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace braid {

// Used by one thread. Runs from its construction.
class DrainTime {
 public:
  // What is left at most once somebody is in a hurry.
  static constexpr absl::Duration kHurried = absl::Seconds(1);

  // `hurry` outlives it.
  DrainTime(absl::Duration time, const absl::Notification* hurry);

  // Until the time is up, calls `wait(timeout)`, which says whether what is waited for came within
  // `timeout`; false if it does not. Calls `tell(left)` every few seconds meanwhile.
  bool Await(absl::FunctionRef<bool(absl::Duration)> wait,
             absl::FunctionRef<void(absl::Duration)> tell);

 private:
  // What is left of it.
  absl::Duration Left();

  const absl::Notification* const hurry_;
  absl::Time end_;
  bool hurried_ = false;
};

}  // namespace braid
