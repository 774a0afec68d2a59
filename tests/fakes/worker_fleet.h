// Real workers on CPU slots, with what they need.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "server/base/clock.h"
#include "server/devices/device.h"
#include "server/devices/worker.h"
#include "server/telemetry/metrics.h"

namespace braid {

// "cpu:0", "cpu:1", …, with one intra-op thread each.
class WorkerFleet {
 public:
  explicit WorkerFleet(int workers) : WorkerFleet(CpuDevices(workers)) {}
  // On `devices`, which need not be CPU slots for their names to say so.
  explicit WorkerFleet(std::vector<std::unique_ptr<Device>> devices) {
    for (std::unique_ptr<Device>& device : devices) {
      workers_.push_back(
          std::make_unique<Worker>(Worker::Options{absl::StrCat("cpu:", workers_.size()),
                                                   /*training_share=*/0.25, &clock_, &metrics_},
                                   std::move(device)));
    }
  }

  ~WorkerFleet() {
    for (const std::unique_ptr<Worker>& worker : workers_) {
      worker->Stop();
    }
  }
  WorkerFleet(const WorkerFleet&) = delete;
  WorkerFleet& operator=(const WorkerFleet&) = delete;

  std::vector<Worker*> workers() const {
    std::vector<Worker*> pointers;
    for (const std::unique_ptr<Worker>& worker : workers_) {
      pointers.push_back(worker.get());
    }
    return pointers;
  }
  Worker& worker(size_t index) const { return *workers_[index]; }
  Metrics* metrics() { return &metrics_; }

 private:
  static std::vector<std::unique_ptr<Device>> CpuDevices(int count) {
    std::vector<std::unique_ptr<Device>> devices;
    for (int d = 0; d < count; ++d) {
      devices.push_back(MakeCpuDevice(/*threads=*/1));
    }
    return devices;
  }

  const RealClock clock_;
  Metrics metrics_;
  // Last member: joined first.
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Keeps a worker busy from its construction until Open().
class WorkerBlock {
 public:
  explicit WorkerBlock(Worker& worker) {
    worker.Post([gate = gate_, entered = entered_] {
      entered->Notify();
      gate->WaitForNotification();
    });
    entered_->WaitForNotification();
  }
  ~WorkerBlock() { Open(); }
  WorkerBlock(const WorkerBlock&) = delete;
  WorkerBlock& operator=(const WorkerBlock&) = delete;

  void Open() {
    if (!gate_->HasBeenNotified()) {
      gate_->Notify();
    }
  }

 private:
  const std::shared_ptr<absl::Notification> gate_ = std::make_shared<absl::Notification>();
  const std::shared_ptr<absl::Notification> entered_ = std::make_shared<absl::Notification>();
};

}  // namespace braid
