// A device that tells what was asked of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/devices/device.h"

namespace braid {

// When so much of a fake device's time had passed.
class FakeMoment final : public Moment {
 public:
  explicit FakeMoment(absl::Duration time) : time_(time) {}
  absl::Duration Since(const Moment& earlier) const override {
    return time_ - static_cast<const FakeMoment&>(earlier).time_;
  }
  absl::Status Wait() const override { return absl::OkStatus(); }

 private:
  const absl::Duration time_;
};

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
  std::unique_ptr<Moment> Mark() override {
    return time ? std::make_unique<FakeMoment>(*time) : nullptr;
  }
  absl::Status WaitFor(const Moment&) override {
    ++waited_for_;
    return absl::OkStatus();
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
  // What its work has taken so far, for its worker's thread; nullopt: Mark() gives no moments.
  std::optional<absl::Duration> time;
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
  // Calls of WaitFor().
  int waited_for() const { return waited_for_; }
  int synchronized() const {
    const absl::MutexLock lock(&mu_);
    return synchronized_;
  }

 private:
  const c10::Device device_;
  const int threads_;
  std::atomic<int> entered_{0};
  std::atomic<int> waited_for_{0};
  mutable absl::Mutex mu_;
  int synchronized_ ABSL_GUARDED_BY(mu_) = 0;
  int fails_at_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
