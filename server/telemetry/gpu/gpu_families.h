// Names, labels and help texts of the GPU metrics. Does not need NVML.
#pragma once

#include <cstddef>
#include <vector>

#include "server/telemetry/description.h"

namespace braid {

// Index into GpuDescriptions().
enum class GpuFamily : size_t {
  kInfo,
  kUtilization,
  kMemoryUtilization,
  kMemoryUsed,
  kMemoryTotal,
  kPower,
  kPowerLimit,
  kEnergy,
  kTemperature,
  kClock,
  kThrottled,
  kEccErrors,
  kPcie,
  kNvlink,
  kMigMemoryUsed,
  kMigMemoryTotal,
  kSensorErrors,
  kXidErrors,
};

// Returns the descriptions of all GPU metrics. The first labels of each are `gpu` and `uuid`.
const std::vector<MetricDescription>& GpuDescriptions();

inline const MetricDescription& Describe(GpuFamily family) {
  return GpuDescriptions()[static_cast<size_t>(family)];
}

}  // namespace braid
