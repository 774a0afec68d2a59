#include "server/batching/expiry_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace braid {

ExpiryThread::ExpiryThread() : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "expiries");
}

ExpiryThread::~ExpiryThread() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void ExpiryThread::Add(absl::Time time, std::weak_ptr<ExpiringQueue> queue) {
  if (time == absl::InfiniteFuture()) {
    return;
  }
  const absl::MutexLock lock(&mu_);
  std::erase_if(due_, [](const auto& due) { return due.second.expired(); });
  const auto known = std::find_if(due_.begin(), due_.end(), [&queue](const auto& due) {
    return !due.second.owner_before(queue) && !queue.owner_before(due.second);
  });
  if (known != due_.end()) {
    if (known->first <= time) {
      return;
    }
    due_.erase(known);
  }
  const auto added = due_.emplace(time, std::move(queue));
  if (added == due_.begin()) {
    changed_.Signal();
  }
}

void ExpiryThread::Run() {
  while (true) {
    std::weak_ptr<ExpiringQueue> queue;
    {
      const absl::MutexLock lock(&mu_);
      while (!stop_ && (due_.empty() || due_.begin()->first > absl::Now())) {
        changed_.WaitWithDeadline(&mu_,
                                  due_.empty() ? absl::InfiniteFuture() : due_.begin()->first);
      }
      if (stop_) {
        return;
      }
      queue = std::move(due_.begin()->second);
      due_.erase(due_.begin());
    }
    if (const std::shared_ptr<ExpiringQueue> alive = queue.lock()) {
      Add(alive->Expire(absl::Now()), std::move(queue));
    }
  }
}

}  // namespace braid
