// Device that records how it is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/devices/device.h"

namespace braid {

// Event at a time of a fake device.
class FakeEvent final : public DeviceEvent {
 public:
  explicit FakeEvent(absl::Duration time) : time_(time) {}
  absl::Duration Since(const DeviceEvent& earlier) const override {
    return time_ - static_cast<const FakeEvent&>(earlier).time_;
  }
  absl::Status Wait() const override { return absl::OkStatus(); }

 private:
  const absl::Duration time_;
};

// Thread-safe.
class FakeDevice final : public Device {
 public:
  // No tensor can be made on a GPU that does not exist.
  explicit FakeDevice(c10::Device device = c10::kCPU, int threads = 1)
      : device_(device), threads_(threads) {}

  void Enter() override { ++entered_; }
  void EnterForLoading() override {
    const absl::MutexLock lock(&mu_);
    ++entered_for_loading_;
    loading_.insert(std::this_thread::get_id());
  }
  absl::Status Synchronize() override {
    if (on_synchronize && !UsesLoadStream()) {
      on_synchronize();
    }
    const absl::MutexLock lock(&mu_);
    if (++synchronized_ == fails_at_) {
      return absl::InternalError("the device is lost");
    }
    return fault_;
  }
  std::unique_ptr<DeviceEvent> RecordEvent() override {
    return time ? std::make_unique<FakeEvent>(*time) : nullptr;
  }
  absl::Status WaitEvent(const DeviceEvent&) override {
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

  // Set these while nothing runs on the device.
  c10::Allocator* pinned = nullptr;
  std::function<void()> on_synchronize;  // of the stream of Enter()
  // Time that its work has taken so far, for its worker's thread; nullopt: RecordEvent() returns
  // nullptr.
  std::optional<absl::Duration> time;
  std::atomic<int64_t> ooms = 0;  // out_of_memory_errors()

  // Sets the result of later calls of Synchronize().
  void set_fault(absl::Status fault) {
    const absl::MutexLock lock(&mu_);
    fault_ = std::move(fault);
  }
  // Makes the `calls`-th later call of Synchronize() fail, and no other.
  void FailOnceAfter(int calls) {
    const absl::MutexLock lock(&mu_);
    fails_at_ = synchronized_ + calls;
  }
  int entered() const { return entered_; }
  // Returns the number of calls of WaitEvent().
  int waited_for() const { return waited_for_; }
  int entered_for_loading() const {
    const absl::MutexLock lock(&mu_);
    return entered_for_loading_;
  }
  int synchronized() const {
    const absl::MutexLock lock(&mu_);
    return synchronized_;
  }

 private:
  bool UsesLoadStream() const {
    const absl::MutexLock lock(&mu_);
    return loading_.contains(std::this_thread::get_id());
  }

  const c10::Device device_;
  const int threads_;
  std::atomic<int> entered_{0};
  std::atomic<int> waited_for_{0};
  mutable absl::Mutex mu_;
  int entered_for_loading_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::thread::id> loading_ ABSL_GUARDED_BY(mu_);
  int synchronized_ ABSL_GUARDED_BY(mu_) = 0;
  int fails_at_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
