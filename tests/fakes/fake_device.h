// A device that tells what was asked of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/device.h"

namespace braid {

// Thread-safe.
class FakeDevice final : public Device {
 public:
  // On a GPU that is not there no tensor can be made.
  explicit FakeDevice(c10::Device device = c10::kCPU, int threads = 1)
      : device_(device), threads_(threads) {}

  void Enter() override { ++entered_; }
  absl::Status Synchronize() override {
    if (on_synchronize) {
      on_synchronize();
    }
    const absl::MutexLock lock(&mu_);
    if (++synchronized_ == fails_at_) {
      return absl::InternalError("the device is lost");
    }
    return fault_;
  }
  void ResetPeakMemory() override {}
  int64_t PeakMemory() override { return 0; }
  c10::Device torch_device() const override { return device_; }
  std::string hardware() const override { return "fake"; }
  int threads() const override { return threads_; }

  int64_t out_of_memory_errors() const override { return ooms; }
  c10::Allocator* pinned_memory() const override { return pinned; }

  // Set while nothing runs on it.
  c10::Allocator* pinned = nullptr;
  std::function<void()> on_synchronize;
  std::atomic<int64_t> ooms = 0;  // out_of_memory_errors()

  // What Synchronize() says from now on.
  void set_fault(absl::Status fault) {
    const absl::MutexLock lock(&mu_);
    fault_ = std::move(fault);
  }
  // The `calls`-th Synchronize() from now on fails, and no other.
  void FailOnceAfter(int calls) {
    const absl::MutexLock lock(&mu_);
    fails_at_ = synchronized_ + calls;
  }
  int entered() const { return entered_; }
  int synchronized() const {
    const absl::MutexLock lock(&mu_);
    return synchronized_;
  }

 private:
  const c10::Device device_;
  const int threads_;
  std::atomic<int> entered_{0};
  mutable absl::Mutex mu_;
  int synchronized_ ABSL_GUARDED_BY(mu_) = 0;
  int fails_at_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
