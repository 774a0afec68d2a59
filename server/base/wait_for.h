// Synchronous wait for a function with a completion callback.
#pragma once

#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"

namespace braid {

// Calls `start(done)`, blocks until `done(result)` is called, which must happen exactly once, and
// returns the result.
template <typename Result, typename Start>
Result WaitFor(Start start) {
  std::optional<Result> result;
  absl::Notification done;
  start([&](Result value) {
    result = std::move(value);
    done.Notify();
  });
  done.WaitForNotification();
  return *std::move(result);
}

}  // namespace braid
