#include "server/telemetry/gpu/gpu_families.h"

#include <string>
#include <utility>

namespace braid {
namespace {

using prometheus::MetricType;

MetricDescription Gpu(const char* name, MetricType type, std::vector<std::string> more_labels,
                      const char* help) {
  std::vector<std::string> labels = {"gpu", "uuid"};
  for (std::string& label : more_labels) {
    labels.push_back(std::move(label));
  }
  return {MetricGroup::kGpu, name, type, std::move(labels), help};
}

}  // namespace

const std::vector<MetricDescription>& GpuDescriptions() {
  static const auto* const kTable = new std::vector<MetricDescription>{
      Gpu("braid_gpu_info", MetricType::Gauge, {"name", "driver_version"},
          "1 for each GPU of the machine."),
      Gpu("braid_gpu_utilization_ratio", MetricType::Gauge, {},
          "Fraction of the driver's last sample period in which a kernel ran on the GPU."),
      Gpu("braid_gpu_memory_utilization_ratio", MetricType::Gauge, {},
          "Fraction of the driver's last sample period in which GPU memory was read or written."),
      Gpu("braid_gpu_memory_used_bytes", MetricType::Gauge, {},
          "GPU memory in use by all processes."),
      Gpu("braid_gpu_memory_total_bytes", MetricType::Gauge, {}, "Total GPU memory."),
      Gpu("braid_gpu_power_watts", MetricType::Gauge, {}, "Power draw of the GPU."),
      Gpu("braid_gpu_power_limit_watts", MetricType::Gauge, {}, "Power limit of the GPU."),
      Gpu("braid_gpu_energy_joules_total", MetricType::Counter, {},
          "Energy used since the driver was loaded."),
      Gpu("braid_gpu_temperature_celsius", MetricType::Gauge, {}, "Temperature of the GPU's die."),
      Gpu("braid_gpu_clock_hertz", MetricType::Gauge, {"clock"}, "Clock rate: sm or memory."),
      Gpu("braid_gpu_throttled", MetricType::Gauge, {"reason"},
          "1 while the clocks are throttled for the reason, else 0: power_cap, hardware, "
          "software_thermal, hardware_thermal, power_brake, sync_boost or clock_setting."),
      Gpu("braid_gpu_ecc_errors_total", MetricType::Counter, {"type"},
          "ECC memory errors over the GPU's lifetime: corrected or uncorrected."),
      Gpu("braid_gpu_pcie_bytes_total", MetricType::Counter, {"direction"},
          "Bytes over PCIe: sent or received by the GPU."),
      Gpu("braid_gpu_nvlink_bytes_total", MetricType::Counter, {"direction"},
          "Bytes over all NVLinks: sent or received by the GPU."),
      Gpu("braid_gpu_mig_memory_used_bytes", MetricType::Gauge, {"mig", "mig_uuid"},
          "Memory in use of a MIG instance."),
      Gpu("braid_gpu_mig_memory_total_bytes", MetricType::Gauge, {"mig", "mig_uuid"},
          "Total memory of a MIG instance."),
      Gpu("braid_gpu_sensor_errors_total", MetricType::Counter, {"sensor"},
          "Failed readings of a GPU sensor, by the first metric of the sensor."),
      Gpu("braid_gpu_xid_errors_total", MetricType::Counter, {"xid"},
          "Critical XID errors since the start of the server."),
  };
  return *kTable;
}

}  // namespace braid
