// Results that threads compute ahead of their consumer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/background_thread.h"

namespace braid {

// Computes numbered results with several threads, each result in parts that run at the same time,
// and returns the results in order. Next() must be called by one thread at a time.
template <typename Result>
class LoadAhead {
 public:
  // Work for one result.
  class Task {
   public:
    virtual ~Task() = default;
    // At least 1.
    virtual int parts() const = 0;
    // Called once for each part in [0, parts()), by several threads at a time.
    virtual absl::Status Run(int part) = 0;
    // Called once, after all parts have succeeded.
    virtual absl::StatusOr<Result> Finish() = 0;
  };
  // Makes the next task; null: there are no more. Called in order, by one thread at a time; after
  // an error not again.
  using MakeTask = std::function<absl::StatusOr<std::unique_ptr<Task>>()>;

  // Starts the threads, with low priority. `max_ahead`: results that are computed, or being
  // computed, before Next() asks for them.
  LoadAhead(const char* thread_name, int threads, size_t max_ahead, MakeTask make)
      : max_ahead_(static_cast<int64_t>(max_ahead)), make_(std::move(make)) {
    for (int t = 0; t < threads; ++t) {
      threads_.emplace_back([this, thread_name] {
        EnterBackground(thread_name);
        Run();
      });
    }
  }
  // Stops the threads after the parts that they are running.
  ~LoadAhead() {
    {
      const absl::MutexLock lock(&mu_);
      stop_ = true;
    }
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  LoadAhead(const LoadAhead&) = delete;
  LoadAhead& operator=(const LoadAhead&) = delete;

  // Blocks until the next result is complete. Returns nullopt after the last one. Returns the first
  // error of the result's parts; the next call then returns the next result. Returns an error of
  // MakeTask again and again.
  absl::StatusOr<std::optional<Result>> Next() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_, absl::Condition(this, &LoadAhead::HasNext));
    const auto found = entries_.find(next_);
    if (found == entries_.end()) {
      if (!make_error_.ok()) {
        return make_error_;
      }
      return std::optional<Result>();
    }
    absl::StatusOr<Result> result = *std::move(found->second.result);
    entries_.erase(found);
    ++next_;
    if (!result.ok()) {
      return std::move(result).status();
    }
    return std::optional<Result>(*std::move(result));
  }

 private:
  struct Entry {
    std::unique_ptr<Task> task;  // used without the lock, by the threads that run its parts
    int parts = 0;
    int next_part = 0;   // that no thread has taken
    int unfinished = 0;  // parts
    absl::Status error;  // first of a part
    std::optional<absl::StatusOr<Result>> result;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      Entry* entry = nullptr;
      int part = 0;
      {
        const absl::MutexLock lock(&mu_, absl::Condition(this, &LoadAhead::HasWork));
        if (stop_) {
          return;
        }
        entry = FirstWithParts();
        if (entry == nullptr) {
          making_ = true;
        } else {
          part = entry->next_part++;
        }
      }
      if (entry == nullptr) {
        Make();
      } else {
        RunPart(entry, part);
      }
    }
  }

  void Make() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::StatusOr<std::unique_ptr<Task>> task = make_();
    const absl::MutexLock lock(&mu_);
    making_ = false;
    if (!task.ok() || *task == nullptr) {
      made_all_ = true;
      make_error_ = task.status();
      return;
    }
    Entry& entry = entries_[made_++];
    entry.parts = entry.unfinished = (*task)->parts();
    entry.task = *std::move(task);
  }

  // A task stays where it is until its result is taken.
  void RunPart(Entry* entry, int part) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Status status = entry->task->Run(part);
    {
      const absl::MutexLock lock(&mu_);
      entry->error.Update(status);
      if (--entry->unfinished > 0) {
        return;
      }
    }
    absl::StatusOr<Result> result =
        entry->error.ok() ? entry->task->Finish() : absl::StatusOr<Result>(entry->error);
    const std::unique_ptr<Task> ended = std::move(entry->task);
    const absl::MutexLock lock(&mu_);
    entry->result = std::move(result);
  }

  Entry* FirstWithParts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [number, entry] : entries_) {
      if (entry.next_part < entry.parts) {
        return &entry;
      }
    }
    return nullptr;
  }
  bool HasWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || FirstWithParts() != nullptr ||
           (!making_ && !made_all_ && made_ < next_ + max_ahead_);
  }
  bool HasNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = entries_.find(next_);
    return found == entries_.end() ? made_all_ : found->second.result.has_value();
  }

  const int64_t max_ahead_;
  const MakeTask make_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool making_ ABSL_GUARDED_BY(mu_) = false;    // a thread is in make_
  bool made_all_ ABSL_GUARDED_BY(mu_) = false;  // make_ is not called again
  absl::Status make_error_ ABSL_GUARDED_BY(mu_);
  int64_t made_ ABSL_GUARDED_BY(mu_) = 0;  // tasks so far
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;  // result that Next() returns
  // Tasks that are made and not taken, by number.
  std::map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);

  std::vector<std::thread> threads_;
};

}  // namespace braid
