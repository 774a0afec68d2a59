#include "server/batching/ordered_replies.h"

#include <utility>

namespace braid {

OrderedReplies::Slot OrderedReplies::Reserve() {
  const absl::MutexLock lock(&mu_);
  pending_.emplace(next_, Deliver());
  return next_++;
}

void OrderedReplies::Provide(Slot slot, Deliver deliver) {
  {
    const absl::MutexLock lock(&mu_);
    pending_[slot] = std::move(deliver);
  }
  DeliverReady();
}

void OrderedReplies::Skip(Slot slot) {
  {
    const absl::MutexLock lock(&mu_);
    pending_.erase(slot);
  }
  DeliverReady();
}

void OrderedReplies::DeliverReady() {
  while (true) {
    Deliver deliver;
    {
      const absl::MutexLock lock(&mu_);
      // Only one thread delivers at a time. Otherwise a second thread could overtake it after the
      // lock is released.
      if (delivering_ || pending_.empty() || !pending_.begin()->second) {
        return;
      }
      delivering_ = true;
      deliver = std::move(pending_.begin()->second);
      pending_.erase(pending_.begin());
    }
    deliver();
    const absl::MutexLock lock(&mu_);
    delivering_ = false;
  }
}

}  // namespace braid
