// Delivers replies in the order in which their requests arrived. Also brings decoded requests into
// that order, before they are queued.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Owned by a BatchQueue. Thread-safe. A reply is delivered on the thread that provides it or on the
// thread that delivers the reply before it, without holding the lock.
class OrderedReplies {
 public:
  using Slot = int64_t;
  using Deliver = absl::AnyInvocable<void()>;

  // Reserves the next slot. Provide() or Skip() must follow.
  Slot Reserve() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `deliver` as soon as all earlier slots are delivered or skipped.
  void Provide(Slot slot, Deliver deliver) ABSL_LOCKS_EXCLUDED(mu_);
  // Releases a slot without a reply.
  void Skip(Slot slot) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void DeliverReady() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  Slot next_ ABSL_GUARDED_BY(mu_) = 0;
  // Pending slots; the function is empty until the reply is provided.
  std::map<Slot, Deliver> pending_ ABSL_GUARDED_BY(mu_);
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace braid
