// Check that a running job repeats.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace braid {

// Makes a check once per second, or less often if it would take more than 1 % of the time: a folder
// may have many files. Thread-compatible.
class PacedCheck {
 public:
  // Returns the result of `check`, or OK without a call if it is not due.
  template <typename Check>
  absl::Status Run(Check check) {
    const absl::Time start = absl::Now();
    if (start < next_) {
      return absl::OkStatus();
    }
    const absl::Status status = check();
    const absl::Time end = absl::Now();
    next_ = end + std::max(kMinInterval, kPauses * (end - start));
    return status;
  }

 private:
  static constexpr absl::Duration kMinInterval = absl::Seconds(1);
  static constexpr int64_t kPauses = 100;

  absl::Time next_ = absl::InfinitePast();
};

}  // namespace braid
