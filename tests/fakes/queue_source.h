// A source of batches that a test fills.
#pragma once

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/devices/worker.h"

namespace braid {

// Thread-safe.
class QueueSource final : public WorkSource {
 public:
  Next Take(const Worker&, absl::Time) override {
    const absl::MutexLock lock(&mu_);
    ++asked_;
    if (work_.empty()) {
      return absl::InfiniteFuture();
    }
    Work work = std::move(work_.front());
    work_.pop_front();
    return work;
  }
  void Push(Work work) {
    const absl::MutexLock lock(&mu_);
    work_.push_back(std::move(work));
  }

  // How often Take() was called.
  int asked() const {
    const absl::MutexLock lock(&mu_);
    return asked_;
  }

 private:
  mutable absl::Mutex mu_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
