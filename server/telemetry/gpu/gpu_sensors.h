// What NVML's sensors of one GPU read. For gpu_metrics.cc alone.
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
  std::vector<std::string> labels = {};  // behind the GPU's
};
using GpuReadings = std::vector<GpuReading>;

struct GpuSensor {
  // The first that it gives; failures are counted under its name.
  GpuFamily family;
  // What is not NVML_SUCCESS leaves `readings` unused.
  nvmlReturn_t (*read)(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings);
};

inline constexpr size_t kGpuSensors = 12;
absl::Span<const GpuSensor> GpuSensors();

// What a GPU, or this driver, does not have, as against what fails.
bool IsAbsent(nvmlReturn_t result);

// Empty if it does not tell.
std::string UuidOf(const NvmlLibrary& nvml, nvmlDevice_t device);

}  // namespace braid
