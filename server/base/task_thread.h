// Thread that runs tasks in the order of posting.
#pragma once

#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Thread-safe.
class TaskThread {
 public:
  using Task = absl::AnyInvocable<void()>;

  explicit TaskThread(const std::string& name);
  // Runs the posted tasks, then joins the thread. Must not be called on that thread.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Does not block. The queue is unbounded: callers limit how many tasks wait.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !tasks_.empty(); }

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
