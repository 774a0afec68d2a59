// When a job that was interrupted by a crash makes its progress durable early.
#pragma once

#include "absl/time/time.h"

namespace braid {

// A job that crashes the server must not try for ever, so it fails after a few crashes without
// durable progress. One that is interrupted from outside must not fail: after a crash it saves as
// soon as it has made any progress, then after 0.2, 0.4, 0.8, … s, until its normal interval is
// shorter. Thread-compatible.
class EarlySaves {
 public:
  // Without `crashed`, no save is ever due.
  EarlySaves(bool crashed, absl::Time now) : next_(crashed ? now : absl::InfiniteFuture()) {}

  // Returns true if a save is due at `now`, which the caller then makes. Called after progress.
  bool Due(absl::Time now) {
    if (now < next_) {
      return false;
    }
    next_ = interval_ > kMaxInterval ? absl::InfiniteFuture() : now + interval_;
    interval_ *= 2;
    return true;
  }

 private:
  static constexpr absl::Duration kMaxInterval = absl::Seconds(60);

  absl::Duration interval_ = absl::Milliseconds(200);
  absl::Time next_;
};

}  // namespace braid
