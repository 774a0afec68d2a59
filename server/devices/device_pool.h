// The workers of all device slots.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/gpu_memory.h"
#include "server/devices/device_slot_view.h"
#include "server/devices/device_spec.h"
#include "server/devices/worker.h"
#include "server/telemetry/metrics.h"

namespace braid {

class CudaBackend;

// Immutable after Create().
class DevicePool {
 public:
  struct Options {
    std::string devices;
    int cpu_threads = 0;
    double training_share = 0;
    const Clock* clock = nullptr;
    Metrics* metrics = nullptr;
    // Each worker's.
    std::function<void(const absl::Status& why)> on_lost = nullptr;
  };

  // Starts a worker for each slot. INVALID_ARGUMENT for slots that this machine has not.
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(const Options& options);
  // The same with `cuda` in place of LoadCudaBackend().
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(
      const Options& options, const absl::StatusOr<CudaBackend*>& cuda);

  ~DevicePool();

  std::vector<Worker*> workers() const;
  // What each slot has done so far.
  std::vector<DeviceSlotView> View() const;
  // Of the GPUs that the process may use, whether they have slots or not.
  static GpuMemorySource gpu_memory();

 private:
  std::vector<DeviceSlot> slots_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace braid
