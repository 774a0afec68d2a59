#include "server/base/task_thread.h"

#include <pthread.h>

#include <utility>

namespace braid {

TaskThread::TaskThread(const std::string& name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

TaskThread::~TaskThread() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void TaskThread::Post(Task task) {
  const absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

void TaskThread::Run() {
  while (true) {
    Task task;
    {
      const absl::MutexLock lock(&mu_, absl::Condition(this, &TaskThread::HasWork));
      if (tasks_.empty()) {
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace braid
