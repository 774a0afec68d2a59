// One thread that runs what it is given, in order.
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
  // Runs what was posted, then joins the thread. Not to be called from it.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Does not block. The caller bounds how many wait.
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
