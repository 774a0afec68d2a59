// Workers of all device slots.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
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

// Owned by the server. Immutable after Create().
class DevicePool {
 public:
  struct Options {
    std::string devices;
    int cpu_threads = 0;
    // See Worker::Options. Also decides the priority of training_workers().
    double training_share = 0;
    const Clock* clock = nullptr;
    Metrics* metrics = nullptr;
    // See Worker::Options.
    std::function<void(const absl::Status& why)> on_lost = nullptr;
  };

  // Starts a worker for each slot of `options.devices`. INVALID_ARGUMENT for slots that this
  // machine does not have.
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(const Options& options);
  // Same, with `cuda` instead of LoadCudaBackend().
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(
      const Options& options, const absl::StatusOr<CudaBackend*>& cuda);

  ~DevicePool();

  std::vector<Worker*> workers() const;
  // Returns a worker of each slot for trainers of clients, in the same order and with the same
  // names. On a CPU slot, its thread has a lower priority than that of workers(), which gives it
  // `training_share` of a core while requests need the core too; so requests interrupt a step. On a
  // GPU, it is the slot's only worker.
  std::vector<Worker*> training_workers() const;
  // Same for trainers of jobs. On a CPU slot, its thread has the lowest priority.
  std::vector<Worker*> background_workers() const;
  // Returns the bytes of memory of each slot, by its name: an equal share of its device's memory.
  std::map<std::string, int64_t> memory() const;
  // Returns the current state of each slot.
  std::vector<DeviceSlotView> View() const;
  // Returns access to memory of all GPUs that the process may use, with or without slots.
  static GpuMemorySource gpu_memory();

 private:
  std::vector<DeviceSlot> slots_;
  std::vector<std::unique_ptr<Worker>> workers_;
  // nullptr for a GPU.
  std::vector<std::unique_ptr<Worker>> training_workers_;
  std::vector<std::unique_ptr<Worker>> background_workers_;
};

}  // namespace braid
