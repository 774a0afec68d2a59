// Records some training operations as a Chrome trace.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Owned by the server. Thread-safe. Uses LibTorch's profiler, Kineto: operators on every thread,
// and kernels on GPUs.
class StepProfiler {
 public:
  // Records `steps` operations of any trainers, after a few for warm-up, and writes them to `path`.
  // Open the file with https://ui.perfetto.dev or chrome://tracing.
  StepProfiler(std::string path, int64_t steps) : path_(std::move(path)), steps_(steps) {}
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  // Called before and after each operation.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Save() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const int64_t steps_;

  absl::Mutex mu_;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  bool recording_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace braid
