// Metrics of the machine's GPUs, read from NVIDIA's management library (NVML) at each scrape.
//
// NVML comes with the driver and is loaded at run time. The metric of a sensor that a GPU does not
// have is absent. If a sensor fails, its metric is absent, never 0, and the failure is counted in
// braid_gpu_sensor_errors_total.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace braid {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// Thread-safe.
class GpuMetrics final : public prometheus::Collectable {
 public:
  // NOT_FOUND if the library does not exist, UNAVAILABLE if it finds no driver.
  static absl::StatusOr<std::shared_ptr<GpuMetrics>> Open(const std::string& library);
  ~GpuMetrics() override;

  // Labels `gpu` and `uuid` of a GPU.
  struct Labels {
    std::string gpu;
    std::string uuid;
  };
  // Finds a GPU by `uuid`, or else by `pci_id`, which a MIG instance shares with its GPU. Returns
  // nullopt if NVML knows neither.
  std::optional<Labels> Find(const std::string& uuid, const std::string& pci_id) const;

  // Memory of a GPU in bytes, over all processes.
  struct Memory {
    int64_t used = 0;
    int64_t total = 0;
  };
  // Reads the memory of the GPU with the label `uuid`. Returns nullopt if NVML does not know it.
  std::optional<Memory> ReadMemory(const std::string& uuid) const;

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct State;
  explicit GpuMetrics(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace braid
