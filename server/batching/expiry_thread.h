// One thread that answers what expires in queues, though no worker is free to.
#pragma once

#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

// Where something expires. Thread-safe.
class Expiring {
 public:
  virtual ~Expiring() = default;
  // Deals with what has expired by `now`; returns when there will be something next. It is asked as
  // it was added, once: what it does not return, nobody looks for.
  virtual absl::Time Expire(absl::Time now) = 0;
};

// Thread-safe.
class ExpiryThread {
 public:
  ExpiryThread();
  // Joins the thread: what would expire later does not.
  ~ExpiryThread();
  ExpiryThread(const ExpiryThread&) = delete;
  ExpiryThread& operator=(const ExpiryThread&) = delete;

  // Calls Expire() of `queue` at `time`, or at an earlier one that was added before, if it still
  // lives, and then whenever that said; at InfiniteFuture never.
  void Add(absl::Time time, std::weak_ptr<Expiring> queue) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // Each queue once: deadlines that come in falling order must not pile up. Those that are gone
  // leave with the next Add(): their time may be years away.
  std::multimap<absl::Time, std::weak_ptr<Expiring>> due_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
