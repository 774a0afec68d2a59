// The metrics of the machine's GPUs: names, labels, help. What reads them needs NVML; this does
// not.
#pragma once

#include <cstddef>
#include <vector>

#include "server/telemetry/description.h"

namespace braid {

// In the order of the table.
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

// All that may be collected. The labels of each begin with `gpu` and `uuid`.
const std::vector<MetricDescription>& GpuDescriptions();

inline const MetricDescription& Describe(GpuFamily family) {
  return GpuDescriptions()[static_cast<size_t>(family)];
}

}  // namespace braid
