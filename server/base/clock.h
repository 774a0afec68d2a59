// Source of time. Tests use a fake one.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace braid {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace braid
