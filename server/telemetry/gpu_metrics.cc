#include "server/telemetry/gpu_metrics.h"

#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/client_metric.h"
#include "server/telemetry/nvml_library.h"

namespace braid {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

struct Reading {
  double value = 0;
  std::vector<Label> labels = {};  // beside the GPU's
};
using Readings = std::vector<Reading>;

// Reads one sensor of one GPU. What is not NVML_SUCCESS leaves `readings` unused.
using Read = nvmlReturn_t (*)(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings);

struct Sensor {
  const char* name;
  const char* help;
  MetricType type;
  Read read;
};

// Calls a function that the library may lack.
template <typename Function, typename... Arguments>
nvmlReturn_t Call(Function* function, Arguments... arguments) {
  return function == nullptr ? NVML_ERROR_FUNCTION_NOT_FOUND : function(arguments...);
}

// What a GPU, or this driver, does not have, as against what fails.
bool IsAbsent(nvmlReturn_t result) {
  return result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND ||
         result == NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t ReadUtilization(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  nvmlUtilization_t percent{};
  const nvmlReturn_t result = Call(nvml.utilization, device, &percent);
  readings->push_back({percent.gpu / 100.0});
  return result;
}

nvmlReturn_t ReadMemoryUtilization(const NvmlLibrary& nvml, nvmlDevice_t device,
                                   Readings* readings) {
  nvmlUtilization_t percent{};
  const nvmlReturn_t result = Call(nvml.utilization, device, &percent);
  readings->push_back({percent.memory / 100.0});
  return result;
}

nvmlReturn_t ReadMemoryUsed(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  nvmlMemory_t memory{};
  const nvmlReturn_t result = Call(nvml.memory, device, &memory);
  readings->push_back({static_cast<double>(memory.used)});
  return result;
}

nvmlReturn_t ReadMemoryTotal(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  nvmlMemory_t memory{};
  const nvmlReturn_t result = Call(nvml.memory, device, &memory);
  readings->push_back({static_cast<double>(memory.total)});
  return result;
}

nvmlReturn_t ReadPower(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  unsigned int milliwatts = 0;
  const nvmlReturn_t result = Call(nvml.power, device, &milliwatts);
  readings->push_back({milliwatts / 1e3});
  return result;
}

nvmlReturn_t ReadPowerLimit(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  unsigned int milliwatts = 0;
  const nvmlReturn_t result = Call(nvml.power_limit, device, &milliwatts);
  readings->push_back({milliwatts / 1e3});
  return result;
}

nvmlReturn_t ReadEnergy(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  unsigned long long millijoules = 0;  // NOLINT(google-runtime-int): NVML's
  const nvmlReturn_t result = Call(nvml.energy, device, &millijoules);
  readings->push_back({static_cast<double>(millijoules) / 1e3});
  return result;
}

nvmlReturn_t ReadTemperature(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  unsigned int celsius = 0;
  const nvmlReturn_t result = Call(nvml.temperature, device, NVML_TEMPERATURE_GPU, &celsius);
  readings->push_back({static_cast<double>(celsius)});
  return result;
}

nvmlReturn_t ReadClocks(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  for (const auto& [clock, name] : {std::pair{NVML_CLOCK_SM, "sm"}, {NVML_CLOCK_MEM, "memory"}}) {
    unsigned int megahertz = 0;
    const nvmlReturn_t result = Call(nvml.clock, device, clock, &megahertz);
    if (result != NVML_SUCCESS) {
      return result;
    }
    readings->push_back({megahertz * 1e6, {{"clock", name}}});
  }
  return NVML_SUCCESS;
}

nvmlReturn_t ReadThrottling(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  unsigned long long reasons = 0;  // NOLINT(google-runtime-int): NVML's
  const nvmlReturn_t result = Call(nvml.clock_reasons, device, &reasons);
  for (const auto& [bit, name] :
       {std::pair{nvmlClocksEventReasonSwPowerCap, "power_cap"},
        {nvmlClocksThrottleReasonHwSlowdown, "hardware"},
        {nvmlClocksEventReasonSwThermalSlowdown, "software_thermal"},
        {nvmlClocksThrottleReasonHwThermalSlowdown, "hardware_thermal"},
        {nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power_brake"},
        {nvmlClocksEventReasonSyncBoost, "sync_boost"},
        {nvmlClocksEventReasonApplicationsClocksSetting, "clock_setting"}}) {
    readings->push_back(
        {(reasons & static_cast<uint64_t>(bit)) != 0 ? 1.0 : 0.0, {{"reason", name}}});
  }
  return result;
}

nvmlReturn_t ReadEccErrors(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  for (const auto& [type, name] : {std::pair{NVML_MEMORY_ERROR_TYPE_CORRECTED, "corrected"},
                                   {NVML_MEMORY_ERROR_TYPE_UNCORRECTED, "uncorrected"}}) {
    unsigned long long errors = 0;  // NOLINT(google-runtime-int): NVML's
    const nvmlReturn_t result = Call(nvml.ecc_errors, device, type, NVML_AGGREGATE_ECC, &errors);
    if (result != NVML_SUCCESS) {
      return result;
    }
    readings->push_back({static_cast<double>(errors), {{"type", name}}});
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

// Bytes sent and received, of two counters that count in units of `unit` bytes.
nvmlReturn_t ReadTraffic(const NvmlLibrary& nvml, nvmlDevice_t device, unsigned int sent,
                         unsigned int received, unsigned int scope, double unit,
                         Readings* readings) {
  std::array<nvmlFieldValue_t, 2> fields{};
  fields[0].fieldId = sent;
  fields[1].fieldId = received;
  fields[0].scopeId = fields[1].scopeId = scope;
  const nvmlReturn_t result = Call(nvml.fields, device, 2, fields.data());
  if (result != NVML_SUCCESS) {
    return result;
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].nvmlReturn != NVML_SUCCESS) {
      return fields[f].nvmlReturn;
    }
    readings->push_back({Number(fields[f]) * unit, {{"direction", f == 0 ? "sent" : "received"}}});
  }
  return NVML_SUCCESS;
}

nvmlReturn_t ReadPcie(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  return ReadTraffic(nvml, device, NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
                     0, 1, readings);
}

nvmlReturn_t ReadNvlink(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  constexpr unsigned int kAllLinks = UINT_MAX;
  return ReadTraffic(nvml, device, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
                     NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, kAllLinks, 1024, readings);
}

std::string UuidOf(const NvmlLibrary& nvml, nvmlDevice_t device) {
  std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> uuid{};
  return Call(nvml.uuid, device, uuid.data(), uuid.size()) == NVML_SUCCESS ? uuid.data() : "";
}

// The memory of each MIG instance.
nvmlReturn_t ReadMig(const NvmlLibrary& nvml, nvmlDevice_t device, bool total, Readings* readings) {
  unsigned int enabled = 0;
  unsigned int pending = 0;
  nvmlReturn_t result = Call(nvml.mig_mode, device, &enabled, &pending);
  if (result != NVML_SUCCESS || enabled == NVML_DEVICE_MIG_DISABLE) {
    return result;
  }
  unsigned int count = 0;
  result = Call(nvml.mig_count, device, &count);
  for (unsigned int i = 0; result == NVML_SUCCESS && i < count; ++i) {
    nvmlDevice_t instance = nullptr;
    if (Call(nvml.mig_handle, device, i, &instance) != NVML_SUCCESS) {
      continue;  // there is none of this number now
    }
    nvmlMemory_t memory{};
    result = Call(nvml.memory, instance, &memory);
    readings->push_back({static_cast<double>(total ? memory.total : memory.used),
                         {{"mig", absl::StrCat(i)}, {"mig_uuid", UuidOf(nvml, instance)}}});
  }
  return result;
}

nvmlReturn_t ReadMigUsed(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  return ReadMig(nvml, device, /*total=*/false, readings);
}

nvmlReturn_t ReadMigTotal(const NvmlLibrary& nvml, nvmlDevice_t device, Readings* readings) {
  return ReadMig(nvml, device, /*total=*/true, readings);
}

constexpr Sensor kSensors[] = {
    {"braid_gpu_utilization_ratio",
     "Part of the driver's last sample period in which a kernel ran on the GPU.", MetricType::Gauge,
     ReadUtilization},
    {"braid_gpu_memory_utilization_ratio",
     "Part of the driver's last sample period in which the GPU's memory was read or written.",
     MetricType::Gauge, ReadMemoryUtilization},
    {"braid_gpu_memory_used_bytes", "Memory of the GPU in use, by whatever process.",
     MetricType::Gauge, ReadMemoryUsed},
    {"braid_gpu_memory_total_bytes", "Memory of the GPU.", MetricType::Gauge, ReadMemoryTotal},
    {"braid_gpu_power_watts", "Power that the GPU draws.", MetricType::Gauge, ReadPower},
    {"braid_gpu_power_limit_watts", "Power that the GPU may draw.", MetricType::Gauge,
     ReadPowerLimit},
    {"braid_gpu_energy_joules_total", "Energy used since the driver was loaded.",
     MetricType::Counter, ReadEnergy},
    {"braid_gpu_temperature_celsius", "Temperature of the GPU's die.", MetricType::Gauge,
     ReadTemperature},
    {"braid_gpu_clock_hertz", "Clock rate: sm or memory.", MetricType::Gauge, ReadClocks},
    {"braid_gpu_throttled", "1 while the clocks are held down for the reason, else 0.",
     MetricType::Gauge, ReadThrottling},
    {"braid_gpu_ecc_errors_total", "Memory errors over the GPU's life: corrected or uncorrected.",
     MetricType::Counter, ReadEccErrors},
    {"braid_gpu_pcie_bytes_total", "Bytes over PCIe: sent or received by the GPU.",
     MetricType::Counter, ReadPcie},
    {"braid_gpu_nvlink_bytes_total", "Bytes over all NVLinks: sent or received by the GPU.",
     MetricType::Counter, ReadNvlink},
    {"braid_gpu_mig_memory_used_bytes", "Memory of a MIG instance in use.", MetricType::Gauge,
     ReadMigUsed},
    {"braid_gpu_mig_memory_total_bytes", "Memory of a MIG instance.", MetricType::Gauge,
     ReadMigTotal},
};
constexpr size_t kSensorCount = std::size(kSensors);

struct Gpu {
  nvmlDevice_t device = nullptr;
  std::vector<Label> labels;  // gpu and uuid, as dcgm-exporter has them
  std::string name;
  bool tells_xid = false;
};

void Add(const Gpu& gpu, const Reading& reading, MetricFamily* family) {
  ClientMetric metric;
  metric.label = gpu.labels;
  metric.label.insert(metric.label.end(), reading.labels.begin(), reading.labels.end());
  (family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = reading.value;
  family->metric.push_back(std::move(metric));
}

void AddIfAny(MetricFamily family, std::vector<MetricFamily>* families) {
  if (!family.metric.empty()) {
    families->push_back(std::move(family));
  }
}

}  // namespace

struct GpuMetrics::State {
  explicit State(void* handle) : nvml(handle) {}

  // Counts the XID errors that the driver has told since the last time.
  void ReadXids() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const NvmlLibrary nvml;
  std::string driver;
  std::vector<Gpu> gpus;
  nvmlEventSet_t events = nullptr;

  absl::Mutex mu;
  // By GPU and sensor.
  std::vector<std::array<double, kSensorCount>> failures ABSL_GUARDED_BY(mu);
  // By GPU and XID.
  std::vector<std::map<uint64_t, double>> xids ABSL_GUARDED_BY(mu);
};

void GpuMetrics::State::ReadXids() {
  nvmlEventData_t event{};
  while (events != nullptr && Call(nvml.event_set_wait, events, &event, 0) == NVML_SUCCESS) {
    for (size_t g = 0; g < gpus.size(); ++g) {
      if (gpus[g].device == event.device && event.eventType == nvmlEventTypeXidCriticalError) {
        ++xids[g][event.eventData];
      }
    }
  }
}

absl::StatusOr<std::shared_ptr<GpuMetrics>> GpuMetrics::Open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("'", library, "' cannot be loaded: there is no driver"));
  }
  auto state = std::make_unique<State>(handle);
  const NvmlLibrary& nvml = state->nvml;
  if (const nvmlReturn_t result = Call(nvml.init); result != NVML_SUCCESS) {
    return absl::UnavailableError(absl::StrCat(
        "NVML does not start: ", nvml.error_string ? nvml.error_string(result) : "no NVML"));
  }
  std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> driver{};
  Call(nvml.driver_version, driver.data(), driver.size());
  state->driver = driver.data();
  unsigned int count = 0;
  Call(nvml.count, &count);
  if (Call(nvml.event_set_create, &state->events) != NVML_SUCCESS) {
    state->events = nullptr;
  }
  for (unsigned int g = 0; g < count; ++g) {
    Gpu gpu;
    if (Call(nvml.handle_by_index, g, &gpu.device) != NVML_SUCCESS) {
      continue;
    }
    std::array<char, NVML_DEVICE_NAME_V2_BUFFER_SIZE> name{};
    Call(nvml.name, gpu.device, name.data(), name.size());
    gpu.name = name.data();
    gpu.labels = {{"gpu", absl::StrCat(g)}, {"uuid", UuidOf(nvml, gpu.device)}};
    gpu.tells_xid = state->events != nullptr &&
                    Call(nvml.register_events, gpu.device, nvmlEventTypeXidCriticalError,
                         state->events) == NVML_SUCCESS;
    state->gpus.push_back(std::move(gpu));
  }
  {
    const absl::MutexLock lock(&state->mu);
    state->failures.resize(state->gpus.size());
    state->xids.resize(state->gpus.size());
  }
  return std::shared_ptr<GpuMetrics>(new GpuMetrics(std::move(state)));
}

GpuMetrics::GpuMetrics(std::unique_ptr<State> state) : state_(std::move(state)) {}

GpuMetrics::~GpuMetrics() {
  if (state_->events != nullptr) {
    Call(state_->nvml.event_set_free, state_->events);
  }
  Call(state_->nvml.shutdown);
}

std::optional<GpuMetrics::Labels> GpuMetrics::Find(const std::string& uuid,
                                                   const std::string& pci_id) const {
  nvmlDevice_t at_pci_id = nullptr;
  if (Call(state_->nvml.handle_by_pci_id, pci_id.c_str(), &at_pci_id) != NVML_SUCCESS) {
    at_pci_id = nullptr;
  }
  const Gpu* found = nullptr;
  for (const Gpu& gpu : state_->gpus) {
    if (gpu.labels[1].value == uuid || (found == nullptr && gpu.device == at_pci_id)) {
      found = &gpu;
    }
  }
  return found == nullptr ? std::nullopt
                          : std::optional<Labels>({found->labels[0].value, found->labels[1].value});
}

std::vector<MetricFamily> GpuMetrics::Collect() const {
  State& state = *state_;
  std::vector<MetricFamily> families;
  const absl::MutexLock lock(&state.mu);
  MetricFamily info{"braid_gpu_info", "1 for each GPU of the machine.", MetricType::Gauge, {}};
  for (const Gpu& gpu : state.gpus) {
    Add(gpu, {1, {{"name", gpu.name}, {"driver_version", state.driver}}}, &info);
  }
  AddIfAny(std::move(info), &families);
  MetricFamily failures{"braid_gpu_sensor_errors_total",
                        "Readings of a GPU's sensor that failed.",
                        MetricType::Counter,
                        {}};
  for (size_t s = 0; s < kSensorCount; ++s) {
    const Sensor& sensor = kSensors[s];
    MetricFamily family{sensor.name, sensor.help, sensor.type, {}};
    for (size_t g = 0; g < state.gpus.size(); ++g) {
      const Gpu& gpu = state.gpus[g];
      Readings readings;
      const nvmlReturn_t result = sensor.read(state.nvml, gpu.device, &readings);
      if (result == NVML_SUCCESS) {
        for (const Reading& reading : readings) {
          Add(gpu, reading, &family);
        }
      } else if (!IsAbsent(result)) {
        ++state.failures[g][s];
      }
      if (state.failures[g][s] > 0) {
        Add(gpu, {state.failures[g][s], {{"sensor", sensor.name}}}, &failures);
      }
    }
    AddIfAny(std::move(family), &families);
  }
  AddIfAny(std::move(failures), &families);
  state.ReadXids();
  MetricFamily xids{"braid_gpu_xid_errors_total",
                    "Critical XID errors since the server's start.",
                    MetricType::Counter,
                    {}};
  for (size_t g = 0; g < state.gpus.size(); ++g) {
    for (const auto& [xid, count] : state.xids[g]) {
      Add(state.gpus[g], {count, {{"xid", absl::StrCat(xid)}}}, &xids);
    }
  }
  AddIfAny(std::move(xids), &families);
  return families;
}

}  // namespace braid
