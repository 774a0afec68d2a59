// Looks at files once a second, on a thread of its own.
#pragma once

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/access/reloaded_files.h"

namespace braid {

class Reloader {
 public:
  // `files`, which outlive it, are the thread's alone from now on.
  explicit Reloader(std::vector<ReloadedFiles*> files, absl::Duration pause = absl::Seconds(1));
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

 private:
  void Run(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<ReloadedFiles*> files_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last member: joined first.
};

}  // namespace braid
