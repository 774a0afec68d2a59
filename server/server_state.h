// Snapshot of the server for its metrics.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/admission/admission.h"
#include "server/datasets/dataset_space.h"
#include "server/devices/device.h"
#include "server/devices/device_pool.h"
#include "server/jobs/jobs.h"
#include "server/serving/served_models.h"
#include "server/telemetry/state_metrics.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// Metric labels of a GPU.
struct GpuLabels {
  std::string gpu;
  std::string uuid;
};

// Thread-safe. Takes only locks that are held briefly; a change of a job's record waits for the
// disk.
class ServerStateReader {
 public:
  // Returns the labels of GPU `id` in the GPU metrics; nullopt if it has none.
  using FindGpu = std::function<std::optional<GpuLabels>(const GpuId& id)>;

  // All pointers outlive the reader. datasets: null without uploads. Calls `find_gpu` once per GPU
  // slot, in the constructor.
  ServerStateReader(const Admission* admission, const ServedModels* models,
                    const TrainerRegistry* trainers, const Jobs* jobs, const DatasetSpace* datasets,
                    const DevicePool* pool, const FindGpu& find_gpu);

  ServerState Read() const;

 private:
  struct Slot {
    const Worker* worker = nullptr;
    DeviceState fixed;           // fields that never change
    bool has_allocator = false;  // the first slot of its GPU
  };

  const Admission* const admission_;
  const ServedModels* const models_;
  const TrainerRegistry* const trainers_;
  const Jobs* const jobs_;
  const DatasetSpace* const datasets_;
  std::vector<Slot> slots_;
};

}  // namespace braid
