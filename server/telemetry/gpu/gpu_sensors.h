// NVML's sensors of a GPU. Used only by gpu_metrics.cc.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/telemetry/gpu/gpu_families.h"
#include "server/telemetry/gpu/nvml_library.h"

namespace braid {

// Calls a function that the library may lack.
template <typename Function, typename... Arguments>
nvmlReturn_t CallNvml(Function* function, Arguments... arguments) {
  return function == nullptr ? NVML_ERROR_FUNCTION_NOT_FOUND : function(arguments...);
}

struct GpuReading {
  GpuFamily family = GpuFamily::kInfo;
  double value = 0;
  std::vector<std::string> labels = {};  // after the GPU's labels
};
using GpuReadings = std::vector<GpuReading>;

struct GpuSensor {
  // First metric of the sensor, under which failures are counted.
  GpuFamily family;
  // `readings` are valid only for NVML_SUCCESS.
  nvmlReturn_t (*read)(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings);
};

inline constexpr size_t kGpuSensors = 12;
absl::Span<const GpuSensor> GpuSensors();

// Returns true if `result` means that the GPU or driver lacks the sensor, false if it failed.
bool IsAbsent(nvmlReturn_t result);

// Returns an empty string if the UUID is unknown.
std::string UuidOf(const NvmlLibrary& nvml, nvmlDevice_t device);

}  // namespace braid
