// A clock that advances only when a test calls it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"

namespace braid {

// Thread-safe.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override {
    const absl::MutexLock lock(&mu_);
    return now_;
  }
  void Advance(absl::Duration by) {
    const absl::MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::UnixEpoch();
};

}  // namespace braid
