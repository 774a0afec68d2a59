#include "server/telemetry/gpu/gpu_sensors.h"

#include <array>
#include <climits>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

nvmlReturn_t ReadUtilization(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  nvmlUtilization_t percent{};
  const nvmlReturn_t result = CallNvml(nvml.utilization, device, &percent);
  readings->push_back({GpuFamily::kUtilization, percent.gpu / 100.0});
  readings->push_back({GpuFamily::kMemoryUtilization, percent.memory / 100.0});
  return result;
}

nvmlReturn_t ReadMemory(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  nvmlMemory_t memory{};
  const nvmlReturn_t result = CallNvml(nvml.memory, device, &memory);
  readings->push_back({GpuFamily::kMemoryUsed, static_cast<double>(memory.used)});
  readings->push_back({GpuFamily::kMemoryTotal, static_cast<double>(memory.total)});
  return result;
}

nvmlReturn_t ReadPower(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned int milliwatts = 0;
  const nvmlReturn_t result = CallNvml(nvml.power, device, &milliwatts);
  readings->push_back({GpuFamily::kPower, milliwatts / 1e3});
  return result;
}

nvmlReturn_t ReadPowerLimit(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned int milliwatts = 0;
  const nvmlReturn_t result = CallNvml(nvml.power_limit, device, &milliwatts);
  readings->push_back({GpuFamily::kPowerLimit, milliwatts / 1e3});
  return result;
}

nvmlReturn_t ReadEnergy(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned long long millijoules = 0;  // NOLINT(google-runtime-int): NVML's
  const nvmlReturn_t result = CallNvml(nvml.energy, device, &millijoules);
  readings->push_back({GpuFamily::kEnergy, static_cast<double>(millijoules) / 1e3});
  return result;
}

nvmlReturn_t ReadTemperature(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned int celsius = 0;
  const nvmlReturn_t result = CallNvml(nvml.temperature, device, NVML_TEMPERATURE_GPU, &celsius);
  readings->push_back({GpuFamily::kTemperature, static_cast<double>(celsius)});
  return result;
}

nvmlReturn_t ReadClocks(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  for (const auto& [clock, name] : {std::pair{NVML_CLOCK_SM, "sm"}, {NVML_CLOCK_MEM, "memory"}}) {
    unsigned int megahertz = 0;
    const nvmlReturn_t result = CallNvml(nvml.clock, device, clock, &megahertz);
    if (result != NVML_SUCCESS) {
      return result;
    }
    readings->push_back({GpuFamily::kClock, megahertz * 1e6, {name}});
  }
  return NVML_SUCCESS;
}

nvmlReturn_t ReadThrottling(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned long long reasons = 0;  // NOLINT(google-runtime-int): NVML's
  const nvmlReturn_t result = CallNvml(nvml.clock_reasons, device, &reasons);
  for (const auto& [bit, name] :
       {std::pair{nvmlClocksEventReasonSwPowerCap, "power_cap"},
        {nvmlClocksThrottleReasonHwSlowdown, "hardware"},
        {nvmlClocksEventReasonSwThermalSlowdown, "software_thermal"},
        {nvmlClocksThrottleReasonHwThermalSlowdown, "hardware_thermal"},
        {nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power_brake"},
        {nvmlClocksEventReasonSyncBoost, "sync_boost"},
        {nvmlClocksEventReasonApplicationsClocksSetting, "clock_setting"}}) {
    const bool holds = (reasons & static_cast<uint64_t>(bit)) != 0;
    readings->push_back({GpuFamily::kThrottled, holds ? 1.0 : 0.0, {name}});
  }
  return result;
}

nvmlReturn_t ReadEccErrors(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  for (const auto& [type, name] : {std::pair{NVML_MEMORY_ERROR_TYPE_CORRECTED, "corrected"},
                                   {NVML_MEMORY_ERROR_TYPE_UNCORRECTED, "uncorrected"}}) {
    unsigned long long errors = 0;  // NOLINT(google-runtime-int): NVML's
    const nvmlReturn_t result =
        CallNvml(nvml.ecc_errors, device, type, NVML_AGGREGATE_ECC, &errors);
    if (result != NVML_SUCCESS) {
      return result;
    }
    readings->push_back({GpuFamily::kEccErrors, static_cast<double>(errors), {name}});
  }
  return NVML_SUCCESS;
}

double Number(const nvmlFieldValue_t& field) {
  switch (field.valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
      return field.value.dVal;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      return field.value.uiVal;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      return static_cast<double>(field.value.ulVal);
    default:
      return static_cast<double>(field.value.ullVal);
  }
}

// Reads the bytes sent and received from two counters in units of `unit` bytes.
nvmlReturn_t ReadTraffic(const NvmlLibrary& nvml, nvmlDevice_t device, unsigned int sent,
                         unsigned int received, unsigned int scope, double unit, GpuFamily family,
                         GpuReadings* readings) {
  std::array<nvmlFieldValue_t, 2> fields{};
  fields[0].fieldId = sent;
  fields[1].fieldId = received;
  fields[0].scopeId = fields[1].scopeId = scope;
  const nvmlReturn_t result = CallNvml(nvml.fields, device, 2, fields.data());
  if (result != NVML_SUCCESS) {
    return result;
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].nvmlReturn != NVML_SUCCESS) {
      return fields[f].nvmlReturn;
    }
    readings->push_back({family, Number(fields[f]) * unit, {f == 0 ? "sent" : "received"}});
  }
  return NVML_SUCCESS;
}

nvmlReturn_t ReadPcie(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  return ReadTraffic(nvml, device, NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
                     0, 1, GpuFamily::kPcie, readings);
}

nvmlReturn_t ReadNvlink(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  constexpr unsigned int kAllLinks = UINT_MAX;
  return ReadTraffic(nvml, device, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
                     NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, kAllLinks, 1024, GpuFamily::kNvlink,
                     readings);
}

// Reads the memory of each MIG instance.
nvmlReturn_t ReadMig(const NvmlLibrary& nvml, nvmlDevice_t device, GpuReadings* readings) {
  unsigned int enabled = 0;
  unsigned int pending = 0;
  nvmlReturn_t result = CallNvml(nvml.mig_mode, device, &enabled, &pending);
  if (result != NVML_SUCCESS || enabled == NVML_DEVICE_MIG_DISABLE) {
    return result;
  }
  unsigned int count = 0;
  result = CallNvml(nvml.mig_count, device, &count);
  for (unsigned int i = 0; result == NVML_SUCCESS && i < count; ++i) {
    nvmlDevice_t instance = nullptr;
    if (CallNvml(nvml.mig_handle, device, i, &instance) != NVML_SUCCESS) {
      continue;  // this index is not in use
    }
    nvmlMemory_t memory{};
    result = CallNvml(nvml.memory, instance, &memory);
    const std::vector<std::string> labels = {absl::StrCat(i), UuidOf(nvml, instance)};
    readings->push_back({GpuFamily::kMigMemoryUsed, static_cast<double>(memory.used), labels});
    readings->push_back({GpuFamily::kMigMemoryTotal, static_cast<double>(memory.total), labels});
  }
  return result;
}

constexpr std::array<GpuSensor, kGpuSensors> kSensors = {{
    {GpuFamily::kUtilization, ReadUtilization},
    {GpuFamily::kMemoryUsed, ReadMemory},
    {GpuFamily::kPower, ReadPower},
    {GpuFamily::kPowerLimit, ReadPowerLimit},
    {GpuFamily::kEnergy, ReadEnergy},
    {GpuFamily::kTemperature, ReadTemperature},
    {GpuFamily::kClock, ReadClocks},
    {GpuFamily::kThrottled, ReadThrottling},
    {GpuFamily::kEccErrors, ReadEccErrors},
    {GpuFamily::kPcie, ReadPcie},
    {GpuFamily::kNvlink, ReadNvlink},
    {GpuFamily::kMigMemoryUsed, ReadMig},
}};

}  // namespace

absl::Span<const GpuSensor> GpuSensors() { return kSensors; }

bool IsAbsent(nvmlReturn_t result) {
  return result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND ||
         result == NVML_ERROR_NO_PERMISSION;
}

std::string UuidOf(const NvmlLibrary& nvml, nvmlDevice_t device) {
  std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> uuid{};
  const nvmlReturn_t result = CallNvml(nvml.uuid, device, uuid.data(), uuid.size());
  return result == NVML_SUCCESS ? uuid.data() : "";
}

}  // namespace braid
