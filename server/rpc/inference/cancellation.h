// Cancels an inference request, whether it is being decoded, waits or runs.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/inference_request.h"

namespace braid {

// Shared by a call and the threads that work on its request. Thread-safe.
class Cancellation {
 public:
  // Cancels the request, now or once it is queued. Idempotent.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<InferenceRequest> request;
    {
      const absl::MutexLock lock(&mu_);
      cancelled_ = true;
      request = request_.lock();
    }
    if (request != nullptr) {
      request->Cancel();
    }
  }

  // Returns true after Cancel().
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return cancelled_;
  }

  // Call when the request has been queued.
  void OnQueued(const std::shared_ptr<InferenceRequest>& request) ABSL_LOCKS_EXCLUDED(mu_) {
    bool cancelled = false;
    {
      const absl::MutexLock lock(&mu_);
      request_ = request;
      cancelled = cancelled_;
    }
    if (cancelled) {
      request->Cancel();
    }
  }

 private:
  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<InferenceRequest> request_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
