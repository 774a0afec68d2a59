// Asynchronous operations whose results are taken in the order of their starts.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"

namespace braid {

// `Context` is what the caller remembers of an operation. Thread-compatible; the callbacks may be
// called by other threads, and after the object is gone.
template <typename Result, typename Context>
class InFlight {
 public:
  struct Ended {
    Context context;
    absl::StatusOr<Result> result;
  };

  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  // Waits for all operations.
  ~InFlight() {
    while (!empty()) {
      Pop();
    }
  }

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  // Adds an operation. The caller passes the callback to it, which is called once.
  absl::AnyInvocable<void(absl::StatusOr<Result>)> Push(Context context) {
    auto slot = std::make_shared<Slot>();
    entries_.push_back({std::move(context), slot});
    return [slot](absl::StatusOr<Result> result) {
      slot->result = std::move(result);
      slot->ready.Notify();
    };
  }

  // Waits for the oldest operation and removes it.
  Ended Pop() {
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    entry.slot->ready.WaitForNotification();
    return {std::move(entry.context), *std::move(entry.slot->result)};
  }

 private:
  struct Slot {
    absl::Notification ready;
    std::optional<absl::StatusOr<Result>> result;  // set before `ready`
  };
  struct Entry {
    Context context;
    std::shared_ptr<Slot> slot;
  };

  std::deque<Entry> entries_;
};

}  // namespace braid
