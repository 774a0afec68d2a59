// What NVIDIA's management library (NVML) says of the machine's GPUs, read anew at each scrape.
//
// NVML comes with the driver and is loaded at run time. A sensor that a GPU does not have is
// absent; one that fails is absent too, never 0, and counted in braid_gpu_sensor_errors_total.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace braid {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

class GpuMetrics final : public prometheus::Collectable {
 public:
  // NOT_FOUND if there is no such library, UNAVAILABLE if it finds no driver, both with the reason.
  static absl::StatusOr<std::shared_ptr<GpuMetrics>> Open(const std::string& library);
  ~GpuMetrics() override;

  // The labels `gpu` and `uuid` of a GPU: of that `uuid`, or else at `pci_id`, which a MIG instance
  // has in common with its GPU. nullopt if NVML knows neither.
  struct Labels {
    std::string gpu;
    std::string uuid;
  };
  std::optional<Labels> Find(const std::string& uuid, const std::string& pci_id) const;

  // Thread-safe.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct State;
  explicit GpuMetrics(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace braid
