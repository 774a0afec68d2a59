// The result of work that tells it to a callback.
#pragma once

#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"

namespace braid {

// Calls `ask(done)` and waits until somebody calls `done(result)`, which has to happen once.
template <typename Result, typename Ask>
Result WaitFor(Ask ask) {
  std::optional<Result> result;
  absl::Notification told;
  ask([&](Result got) {
    result = std::move(got);
    told.Notify();
  });
  told.WaitForNotification();
  return *std::move(result);
}

}  // namespace braid
