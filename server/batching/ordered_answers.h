// Answers that are given in the order in which they were expected.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Thread-safe. An answer is given on the thread that brings it or on that which brings the last one
// before it; none while the lock is held.
class OrderedAnswers {
 public:
  using Place = int64_t;
  using Answer = absl::AnyInvocable<void()>;

  // Of an answer that will be brought, behind those that are expected already.
  Place Expect() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives `answer` when those before it have been given.
  void Bring(Place place, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  // None will be brought.
  void Forget(Place place) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void GiveWhatIsDue() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  Place next_ ABSL_GUARDED_BY(mu_) = 0;
  // Empty ones have not come yet.
  std::map<Place, Answer> answers_ ABSL_GUARDED_BY(mu_);
  bool giving_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace braid
