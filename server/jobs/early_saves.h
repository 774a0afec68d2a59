// When a job that was interrupted by a crash makes its progress durable early.
#pragma once

#include "absl/time/time.h"

namespace braid {

// A job that crashes the server must not try for ever, so it fails after a few crashes without
// durable progress. One that others interrupt must not fail: after a crash it saves after 0.2 s,
// then after 0.4, 0.8, … s, until its normal interval is shorter. Thread-compatible.
class EarlySaves {
 public:
  // Without `crashed`, no save is ever due.
  EarlySaves(bool crashed, absl::Time now)
      : interval_(absl::Milliseconds(200)),
        next_(crashed ? now + interval_ : absl::InfiniteFuture()) {}

  // Returns true if a save is due at `now`, which the caller then makes.
  bool Due(absl::Time now) {
    if (now < next_) {
      return false;
    }
    interval_ *= 2;
    next_ = interval_ > kLongest ? absl::InfiniteFuture() : now + interval_;
    return true;
  }

 private:
  static constexpr absl::Duration kLongest = absl::Seconds(60);

  absl::Duration interval_;
  absl::Time next_;
};

}  // namespace braid
