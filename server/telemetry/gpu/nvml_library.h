// Functions of NVML, looked up at run time. A function that an older library lacks is nullptr.
#pragma once

#include <dlfcn.h>

#include "nvml.h"

namespace braid {

class NvmlLibrary {
 public:
  // `handle` is from dlopen() and is never closed.
  explicit NvmlLibrary(void* handle) : handle_(handle) {}

#define BRAID_NVML(member, symbol) \
  decltype(::symbol)* const member = Find<decltype(::symbol)>(#symbol)

 private:
  template <typename Function>
  Function* Find(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

  void* const handle_;

 public:
// NVML 13.2 deprecates two functions whose replacements are missing in current drivers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  BRAID_NVML(init, nvmlInit_v2);
  BRAID_NVML(shutdown, nvmlShutdown);
  BRAID_NVML(error_string, nvmlErrorString);
  BRAID_NVML(driver_version, nvmlSystemGetDriverVersion);
  BRAID_NVML(count, nvmlDeviceGetCount_v2);
  BRAID_NVML(handle_by_index, nvmlDeviceGetHandleByIndex_v2);
  BRAID_NVML(handle_by_pci_id, nvmlDeviceGetHandleByPciBusId_v2);
  BRAID_NVML(uuid, nvmlDeviceGetUUID);
  BRAID_NVML(name, nvmlDeviceGetName);
  BRAID_NVML(utilization, nvmlDeviceGetUtilizationRates);
  BRAID_NVML(memory, nvmlDeviceGetMemoryInfo);
  BRAID_NVML(power, nvmlDeviceGetPowerUsage);
  BRAID_NVML(power_limit, nvmlDeviceGetEnforcedPowerLimit);
  BRAID_NVML(energy, nvmlDeviceGetTotalEnergyConsumption);
  BRAID_NVML(temperature, nvmlDeviceGetTemperature);
  BRAID_NVML(clock, nvmlDeviceGetClockInfo);
  BRAID_NVML(clock_reasons, nvmlDeviceGetCurrentClocksThrottleReasons);
  BRAID_NVML(ecc_errors, nvmlDeviceGetTotalEccErrors);
  BRAID_NVML(fields, nvmlDeviceGetFieldValues);
  BRAID_NVML(mig_mode, nvmlDeviceGetMigMode);
  BRAID_NVML(mig_count, nvmlDeviceGetMaxMigDeviceCount);
  BRAID_NVML(mig_handle, nvmlDeviceGetMigDeviceHandleByIndex);
  BRAID_NVML(event_set_create, nvmlEventSetCreate);
  BRAID_NVML(event_set_free, nvmlEventSetFree);
  BRAID_NVML(register_events, nvmlDeviceRegisterEvents);
  BRAID_NVML(event_set_wait, nvmlEventSetWait_v2);
#pragma GCC diagnostic pop

#undef BRAID_NVML
};

}  // namespace braid
