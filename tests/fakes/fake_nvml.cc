// A stand-in for libnvidia-ml.so: two GPUs. GPU 0 has two MIG instances and reports one XID error.
// GPU 1 has no ECC and no NVLink, and its power sensor fails.
//
// With FAKE_NVML_SIMULATE in the environment, readings vary over time like those of two busy GPUs
// with 80 GiB, for pictures of the dashboards. Both GPUs then have all sensors, and one fails at
// times.
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nvml.h"

// A handle points to one of these: the GPUs, then the instances of GPU 0.
struct nvmlDevice_st {
  int index;
};

namespace {

std::array<nvmlDevice_st, 4> devices = {{{0}, {1}, {2}, {3}}};
constexpr unsigned int kMaxInstances = 7;
bool xid_told = false;

bool IsFirst(nvmlDevice_t device) { return device->index == 0; }

bool IsSimulated() { return std::getenv("FAKE_NVML_SIMULATE") != nullptr; }

// Seconds since the first call.
double Now() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point kStart = Clock::now();
  return std::chrono::duration<double>(Clock::now() - kStart).count();
}

// Simulated load of a GPU, from 0 to 1: a mean and four waves.
struct Load {
  struct Wave {
    double amplitude, radians_per_second;
  };
  double mean;
  std::array<Wave, 4> waves;

  double At(double time) const {
    double load = mean;
    for (const Wave& wave : waves) {
      load += wave.amplitude * std::sin(wave.radians_per_second * time);
    }
    return load;
  }
  // Integral of the load since the start, in seconds: counters are proportional to it.
  double Until(double time) const {
    double sum = mean * time;
    for (const auto& [amplitude, speed] : waves) {
      sum += amplitude / speed * (1 - std::cos(speed * time));
    }
    return sum;
  }
  // Mean over the last 15 seconds.
  double Smooth(double time) const { return (Until(time) - Until(time - 15)) / 15; }
};

const Load& LoadOf(nvmlDevice_t device) {
  static constexpr std::array<Load, 2> kLoads = {
      {{0.80, {{{0.07, 0.023}, {0.05, 0.17}, {0.04, 0.61}, {0.03, 2.9}}}},
       {0.55, {{{0.13, 0.037}, {0.08, 0.13}, {0.06, 0.49}, {0.04, 2.3}}}}}};
  return kLoads[IsFirst(device) ? 0 : 1];
}

// Load of the GPU now, from 0 to `most`.
double Share(nvmlDevice_t device, double most) { return most * LoadOf(device).At(Now()); }

constexpr double kIdleMilliwatts = 90e3;
constexpr double kLoadMilliwatts = 620e3;         // in addition, at full load
constexpr unsigned long long kGiB = 1ULL << 30U;  // NOLINT(google-runtime-int): NVML's

nvmlReturn_t Write(const char* from, char* to, unsigned int size) {
  if (std::strlen(from) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, from, std::strlen(from) + 1);
  return NVML_SUCCESS;
}

}  // namespace

// NOLINTBEGIN(google-runtime-int, readability-inconsistent-declaration-parameter-name): as in
// nvml.h
extern "C" {

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t) { return "no reason"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return Write("580.1", version, length);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (index >= 2) return NVML_ERROR_INVALID_ARGUMENT;
  *device = &devices[index];
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  if (std::strcmp(id, "0000:3b:00.0") != 0) return NVML_ERROR_NOT_FOUND;
  *device = devices.data();
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  constexpr std::array<const char*, 4> kUuids = {"GPU-aa", "GPU-bb", "MIG-cc", "MIG-dd"};
  return Write(kUuids[static_cast<size_t>(device->index)], uuid, length);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char* name, unsigned int length) {
  return Write(IsSimulated() ? "Simulated 80 GiB" : "Fake \"X\"", name, length);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* percent) {
  *percent = {IsFirst(device) ? 75U : 5U, 20U};
  if (IsSimulated()) {
    *percent = {static_cast<unsigned int>(Share(device, 100)),
                static_cast<unsigned int>(Share(device, 55))};
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  memory->total = device->index < 2 ? 1000 : 400;
  memory->used = 100 + static_cast<unsigned int>(device->index);
  if (IsSimulated()) {
    constexpr std::array<double, 4> kUsed = {0.65, 0.35, 0.75, 0.5};
    const double used =
        kUsed[static_cast<size_t>(device->index)] + 0.2 * LoadOf(device).Smooth(Now());
    memory->total = (device->index < 2 ? 80 : 40) * kGiB;
    memory->used = static_cast<unsigned long long>(used * static_cast<double>(memory->total));
  }
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  if (IsSimulated()) {
    *milliwatts = static_cast<unsigned int>(kIdleMilliwatts + Share(device, kLoadMilliwatts));
    return NVML_SUCCESS;
  }
  *milliwatts = 250500;
  return IsFirst(device) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t, unsigned int* milliwatts) {
  *milliwatts = 700000;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long* millijoules) {
  *millijoules = 1500;
  if (IsSimulated()) {
    const double now = Now();
    *millijoules += static_cast<unsigned long long>(kIdleMilliwatts * now +
                                                    kLoadMilliwatts * LoadOf(device).Until(now));
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t,
                                      unsigned int* celsius) {
  *celsius = 41;
  if (IsSimulated()) {
    *celsius = static_cast<unsigned int>(33 + 40 * LoadOf(device).Smooth(Now()));
    const int second = static_cast<int>(Now()) % 120;
    const bool fails = !IsFirst(device) && second >= 20 && second < 25;
    return fails ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t clock,
                                    unsigned int* megahertz) {
  *megahertz = clock == NVML_CLOCK_SM ? 1980 : 3201;
  if (IsSimulated() && clock == NVML_CLOCK_SM) {
    *megahertz -= static_cast<unsigned int>(Share(device, 300));
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* reasons) {
  *reasons = nvmlClocksEventReasonSwPowerCap | nvmlClocksEventReasonGpuIdle;
  if (IsSimulated() && LoadOf(device).At(Now()) < 0.85) *reasons = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t, unsigned long long* errors) {
  *errors = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? 3 : 1;
  if (IsSimulated()) {
    if (IsFirst(device) && type == NVML_MEMORY_ERROR_TYPE_CORRECTED) {
      *errors += static_cast<unsigned long long>(Now() / 120);
    }
    return NVML_SUCCESS;
  }
  return IsFirst(device) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* fields) {
  for (int f = 0; f < count; ++f) {
    const bool nvlink = fields[f].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ||
                        fields[f].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    fields[f].nvmlReturn = nvlink && !IsFirst(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    fields[f].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    fields[f].value.ullVal = static_cast<unsigned int>(f) + 7;
    if (IsSimulated()) {
      // NVLink's counters are in KiB. A GPU receives less than it sends.
      const double rate = (nvlink ? 40e6 : 6e9) * (f == 0 ? 1 : 0.8);
      const double units = rate * LoadOf(device).Until(Now());
      fields[f].nvmlReturn = NVML_SUCCESS;
      fields[f].value.ullVal = static_cast<unsigned long long>(units);
    }
  }
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* now, unsigned int* pending) {
  *now = *pending = IsFirst(device) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t, unsigned int* count) {
  *count = kMaxInstances;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t, unsigned int index,
                                                 nvmlDevice_t* instance) {
  if (index != 0 && index != 3) return NVML_ERROR_NOT_FOUND;
  *instance = &devices[index == 0 ? 2 : 3];
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  *set = reinterpret_cast<nvmlEventSet_t>(&xid_told);
  xid_told = false;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t) { return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t) {
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t* event, unsigned int) {
  if (xid_told) return NVML_ERROR_TIMEOUT;
  xid_told = true;
  event->device = devices.data();
  event->eventType = nvmlEventTypeXidCriticalError;
  event->eventData = IsSimulated() ? 31 : 79;
  return NVML_SUCCESS;
}

}  // extern "C"
// NOLINTEND(google-runtime-int, readability-inconsistent-declaration-parameter-name)
