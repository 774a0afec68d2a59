// One thread that fails queued requests whose deadline or timeout has passed, even if no worker is
// free.
#pragma once

#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

// A queue whose entries expire. Thread-safe.
class ExpiringQueue {
 public:
  virtual ~ExpiringQueue() = default;
  // Handles the entries that have expired by `now`. Returns the time of the next call. Called once
  // per ExpiryThread::Add(); InfiniteFuture: not called again.
  virtual absl::Time Expire(absl::Time now) = 0;
};

// Thread-safe. Owned by ServedModels.
class ExpiryThread {
 public:
  ExpiryThread();
  // Joins the thread. Later expiries are dropped.
  ~ExpiryThread();
  ExpiryThread(const ExpiryThread&) = delete;
  ExpiryThread& operator=(const ExpiryThread&) = delete;

  // Schedules a call of `queue`'s Expire() at `time`, and then whenever Expire() returns. Each
  // queue is scheduled once, at the earliest of its times. Ignores InfiniteFuture. A queue that no
  // longer exists is skipped.
  void Add(absl::Time time, std::weak_ptr<ExpiringQueue> queue) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // Contains each queue at most once, so that decreasing deadlines do not accumulate. Add() erases
  // expired pointers, whose times may be years away.
  std::multimap<absl::Time, std::weak_ptr<ExpiringQueue>> due_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
