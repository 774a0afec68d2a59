#include "server/telemetry/gpu/gpu_metrics.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/telemetry/gpu/gpu_families.h"
#include "server/telemetry/gpu/gpu_sensors.h"
#include "server/telemetry/gpu/nvml_library.h"

namespace braid {
namespace {

using prometheus::MetricFamily;

struct Gpu {
  nvmlDevice_t device = nullptr;
  std::string index;  // like uuid, the same as dcgm-exporter's
  std::string uuid;
  std::string name;
  bool reports_xid = false;
};

// Metric families of one scrape.
class Scrape {
 public:
  Scrape() {
    for (const MetricDescription& description : GpuDescriptions()) {
      families_.push_back(EmptyFamily(description));
    }
  }

  void Add(const Gpu& gpu, const GpuReading& reading) {
    std::vector<std::string> labels = {gpu.index, gpu.uuid};
    labels.insert(labels.end(), reading.labels.begin(), reading.labels.end());
    AddSeries(Describe(reading.family), labels, reading.value,
              &families_[static_cast<size_t>(reading.family)]);
  }

  // Returns the families that are not empty.
  std::vector<MetricFamily> Take() && {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  std::vector<MetricFamily> families_;
};

}  // namespace

struct GpuMetrics::State {
  explicit State(void* handle) : nvml(handle) {}

  // Reads all sensors of GPU `g`.
  void Read(size_t g, Scrape* scrape) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Counts the XID errors since the previous scrape.
  void ReadXids() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const NvmlLibrary nvml;
  std::string driver;
  std::vector<Gpu> gpus;
  nvmlEventSet_t events = nullptr;

  absl::Mutex mu;
  // By GPU and sensor.
  std::vector<std::array<double, kGpuSensors>> failures ABSL_GUARDED_BY(mu);
  // By GPU and XID.
  std::vector<std::map<uint64_t, double>> xids ABSL_GUARDED_BY(mu);
};

void GpuMetrics::State::Read(size_t g, Scrape* scrape) {
  const Gpu& gpu = gpus[g];
  scrape->Add(gpu, {GpuFamily::kInfo, 1, {gpu.name, driver}});
  for (size_t s = 0; s < kGpuSensors; ++s) {
    const GpuSensor& sensor = GpuSensors()[s];
    GpuReadings readings;
    const nvmlReturn_t result = sensor.read(nvml, gpu.device, &readings);
    if (result == NVML_SUCCESS) {
      for (const GpuReading& reading : readings) {
        scrape->Add(gpu, reading);
      }
    } else if (!IsAbsent(result)) {
      ++failures[g][s];
    }
    if (failures[g][s] > 0) {
      scrape->Add(gpu, {GpuFamily::kSensorErrors, failures[g][s], {Describe(sensor.family).name}});
    }
  }
}

void GpuMetrics::State::ReadXids() {
  nvmlEventData_t event{};
  while (events != nullptr && CallNvml(nvml.event_set_wait, events, &event, 0) == NVML_SUCCESS) {
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
        absl::StrCat("'", library, "' cannot be loaded (no NVIDIA driver?)"));
  }
  auto state = std::make_unique<State>(handle);
  const NvmlLibrary& nvml = state->nvml;
  if (const nvmlReturn_t result = CallNvml(nvml.init); result != NVML_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("NVML cannot be initialized: ",
                     nvml.error_string ? nvml.error_string(result) : "unknown error"));
  }
  std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> driver{};
  CallNvml(nvml.driver_version, driver.data(), driver.size());
  state->driver = driver.data();
  unsigned int count = 0;
  CallNvml(nvml.count, &count);
  if (CallNvml(nvml.event_set_create, &state->events) != NVML_SUCCESS) {
    state->events = nullptr;
  }
  for (unsigned int g = 0; g < count; ++g) {
    Gpu gpu;
    if (CallNvml(nvml.handle_by_index, g, &gpu.device) != NVML_SUCCESS) {
      continue;
    }
    std::array<char, NVML_DEVICE_NAME_V2_BUFFER_SIZE> name{};
    CallNvml(nvml.name, gpu.device, name.data(), name.size());
    gpu.name = name.data();
    gpu.index = absl::StrCat(g);
    gpu.uuid = UuidOf(nvml, gpu.device);
    gpu.reports_xid = state->events != nullptr &&
                      CallNvml(nvml.register_events, gpu.device, nvmlEventTypeXidCriticalError,
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
    CallNvml(state_->nvml.event_set_free, state_->events);
  }
  CallNvml(state_->nvml.shutdown);
}

std::optional<GpuMetrics::Labels> GpuMetrics::Find(const std::string& uuid,
                                                   const std::string& pci_id) const {
  nvmlDevice_t at_pci_id = nullptr;
  if (CallNvml(state_->nvml.handle_by_pci_id, pci_id.c_str(), &at_pci_id) != NVML_SUCCESS) {
    at_pci_id = nullptr;
  }
  const Gpu* found = nullptr;
  for (const Gpu& gpu : state_->gpus) {
    if (gpu.uuid == uuid || (found == nullptr && gpu.device == at_pci_id)) {
      found = &gpu;
    }
  }
  return found == nullptr ? std::nullopt : std::optional<Labels>({found->index, found->uuid});
}

std::optional<GpuMetrics::Memory> GpuMetrics::ReadMemory(const std::string& uuid) const {
  nvmlMemory_t memory{};
  for (const Gpu& gpu : state_->gpus) {
    if (gpu.uuid == uuid && CallNvml(state_->nvml.memory, gpu.device, &memory) == NVML_SUCCESS) {
      return Memory{static_cast<int64_t>(memory.used), static_cast<int64_t>(memory.total)};
    }
  }
  return std::nullopt;
}

std::vector<MetricFamily> GpuMetrics::Collect() const {
  State& state = *state_;
  Scrape scrape;
  const absl::MutexLock lock(&state.mu);
  state.ReadXids();
  for (size_t g = 0; g < state.gpus.size(); ++g) {
    state.Read(g, &scrape);
    for (const auto& [xid, count] : state.xids[g]) {
      scrape.Add(state.gpus[g], {GpuFamily::kXidErrors, count, {absl::StrCat(xid)}});
    }
  }
  return std::move(scrape).Take();
}

}  // namespace braid
