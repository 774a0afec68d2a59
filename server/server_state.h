// How the server stands, for its metrics.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/admission/admission.h"
#include "server/devices/device.h"
#include "server/devices/device_pool.h"
#include "server/serving/served_models.h"
#include "server/telemetry/state_metrics.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// A GPU's labels.
struct GpuLabels {
  std::string gpu;
  std::string uuid;
};

// Thread-safe. Reads under the short locks that requests take, too.
class ServerStateReader {
 public:
  // What the metrics of the machine's GPUs call the GPU `id`; nullopt: there are none of it.
  using FindGpu = std::function<std::optional<GpuLabels>(const GpuId& id)>;

  // All of it outlives the reader. Asks `find_gpu` once a device, now.
  ServerStateReader(const Admission* admission, const ServedModels* models,
                    const TrainerRegistry* trainers, const DevicePool* pool,
                    const FindGpu& find_gpu);

  ServerState Read() const;

 private:
  struct Slot {
    const Worker* worker = nullptr;
    DeviceState known;           // what never changes
    bool has_allocator = false;  // the first slot of its GPU
  };

  const Admission* const admission_;
  const ServedModels* const models_;
  const TrainerRegistry* const trainers_;
  std::vector<Slot> slots_;
};

}  // namespace braid
