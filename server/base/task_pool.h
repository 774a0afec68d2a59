// Threads that many queues of tasks share.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace braid {

class TaskQueue;

// Thread-safe.
class TaskPool {
 public:
  // Starts a thread when a queue has a task and no thread is free, at most `max_threads`, or fewer
  // if the system has no more.
  TaskPool(std::string name, size_t max_threads);
  // Joins the threads. The queues must be gone.
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Returns the number of threads that have been started.
  size_t threads() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class TaskQueue;

  // Calls queue->RunOne() on a thread, in the order of the calls.
  void Add(TaskQueue* queue) ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !ready_.empty(); }

  const std::string name_;
  const size_t max_threads_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  size_t free_ ABSL_GUARDED_BY(mu_) = 0;  // threads that wait
  std::deque<TaskQueue*> ready_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

// Runs its tasks one at a time, in the order of posting, on any thread of a pool. Queues take turns
// after each task. Thread-safe.
class TaskQueue {
 public:
  using Task = absl::AnyInvocable<void()>;

  // `pool` outlives the queue.
  explicit TaskQueue(TaskPool* pool) : pool_(pool) {}
  // Waits until the posted tasks have run. Must not be called by one of them.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Does not block. The queue is unbounded: callers limit how many tasks wait.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class TaskPool;

  void RunOne() ABSL_LOCKS_EXCLUDED(mu_);

  TaskPool* const pool_;

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // has tasks, or runs one
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
