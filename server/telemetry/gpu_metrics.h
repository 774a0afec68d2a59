// What NVIDIA's management library (NVML) says of the machine's GPUs, read anew at each scrape.
//
// NVML comes with the driver and is loaded at run time. A sensor that a GPU does not have is
// absent; one that fails is absent too, never 0, and counted in braid_gpu_sensor_errors_total.
#pragma once

#include <memory>
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

  // Thread-safe.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct State;
  explicit GpuMetrics(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace braid
