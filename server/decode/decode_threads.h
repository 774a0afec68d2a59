// Threads that decode the rows of requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Alternates between posted requests, so that a large one does not delay small ones. Owned by the
// server. Thread-safe.
class DecodeThreads {
 public:
  // Runs one part of the posted work. Called from several threads at once.
  using RunPart = absl::AnyInvocable<void(int64_t part) const>;
  // Called once, after the last part, on the thread that ran it.
  using Done = absl::AnyInvocable<void()>;

  // The threads start with the first Post(). count: at least 1.
  explicit DecodeThreads(int count) : count_(count) {}
  // Runs the posted work, then joins the threads. Must not be called on one of them.
  ~DecodeThreads();
  DecodeThreads(const DecodeThreads&) = delete;
  DecodeThreads& operator=(const DecodeThreads&) = delete;

  int count() const { return count_; }
  // Runs parts 0 to `parts` - 1. Requires at least one part. Does not block. The queue is
  // unbounded: callers limit how much work waits.
  void Post(int64_t parts, RunPart run, Done done) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Work {
    Work(int64_t count, RunPart run_part, Done when_done)
        : parts(count), run(std::move(run_part)), done(std::move(when_done)), left(count) {}

    const int64_t parts;
    const RunPart run;
    Done done;
    int64_t next = 0;  // guarded by DecodeThreads::mu_
    std::atomic<int64_t> left;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !waiting_.empty(); }

  const int count_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Work>> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
