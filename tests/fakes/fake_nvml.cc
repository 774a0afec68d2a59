// A stand-in for libnvidia-ml.so: two GPUs. GPU 0 is cut into two MIG instances and tells of an XID
// error once. GPU 1 has no ECC and no NVLink, and its power sensor fails.
#include <array>
#include <cstddef>
#include <cstdio>
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
  return Write("Fake \"X\"", name, length);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* percent) {
  *percent = {IsFirst(device) ? 75U : 5U, 20U};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  memory->total = device->index < 2 ? 1000 : 400;
  memory->used = 100 + static_cast<unsigned int>(device->index);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  *milliwatts = 250500;
  return IsFirst(device) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t, unsigned int* milliwatts) {
  *milliwatts = 700000;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t, unsigned long long* millijoules) {
  *millijoules = 1500;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t, nvmlTemperatureSensors_t,
                                      unsigned int* celsius) {
  *celsius = 41;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t, nvmlClockType_t clock, unsigned int* megahertz) {
  *megahertz = clock == NVML_CLOCK_SM ? 1980 : 3201;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t, unsigned long long* reasons) {
  *reasons = nvmlClocksEventReasonSwPowerCap | nvmlClocksEventReasonGpuIdle;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t, unsigned long long* errors) {
  *errors = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? 3 : 1;
  return IsFirst(device) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* fields) {
  for (int f = 0; f < count; ++f) {
    const bool nvlink = fields[f].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ||
                        fields[f].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    fields[f].nvmlReturn = nvlink && !IsFirst(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    fields[f].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    fields[f].value.ullVal = static_cast<unsigned int>(f) + 7;
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
  event->eventData = 79;
  return NVML_SUCCESS;
}

}  // extern "C"
// NOLINTEND(google-runtime-int, readability-inconsistent-declaration-parameter-name)
