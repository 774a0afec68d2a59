#include "server/base/task_pool.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace braid {

TaskPool::TaskPool(std::string name, size_t max_threads)
    : name_(std::move(name)), max_threads_(max_threads) {}

TaskPool::~TaskPool() {
  std::vector<std::thread> threads;
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

size_t TaskPool::threads() const {
  const absl::MutexLock lock(&mu_);
  return threads_.size();
}

void TaskPool::Add(TaskQueue* queue) {
  const absl::MutexLock lock(&mu_);
  ready_.push_back(queue);
  if (ready_.size() > free_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { Run(); });
      pthread_setname_np(threads_.back().native_handle(), name_.substr(0, 15).c_str());
    } catch (const std::system_error&) {
      if (threads_.empty()) {
        throw;
      }
    }
  }
}

void TaskPool::Run() {
  while (true) {
    TaskQueue* queue = nullptr;
    {
      const absl::MutexLock lock(&mu_);
      ++free_;
      mu_.Await(absl::Condition(this, &TaskPool::HasWork));
      --free_;
      if (ready_.empty()) {
        return;
      }
      queue = ready_.front();
      ready_.pop_front();
    }
    queue->RunOne();
  }
}

TaskQueue::~TaskQueue() {
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !busy_; };
  const absl::MutexLock lock(&mu_, absl::Condition(&idle));
}

void TaskQueue::Post(Task task) {
  const absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
  if (!std::exchange(busy_, true)) {
    pool_->Add(this);
  }
}

void TaskQueue::RunOne() {
  Task task;
  {
    const absl::MutexLock lock(&mu_);
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  task = nullptr;  // Its captures may belong to the owner of the queue.
  const absl::MutexLock lock(&mu_);
  if (tasks_.empty()) {
    busy_ = false;
  } else {
    pool_->Add(this);
  }
}

}  // namespace braid
