#include "server/telemetry/device_metrics.h"

#include <cstddef>

#include "server/telemetry/metric_table.h"

namespace braid {
namespace {

constexpr std::array<absl::string_view, kDeviceWorks> kWorkNames = {"inference", "training", "job"};

}  // namespace

DeviceMetrics::DeviceMetrics(Metrics* metrics, absl::string_view device) {
  MetricTable& table = *metrics->table_;
  for (size_t p = 0; p < busy_.size(); ++p) {
    busy_[p] = &table.busy.At({device, PhaseName(static_cast<Phase>(p))});
  }
  for (size_t w = 0; w < samples_.size(); ++w) {
    samples_[w] = &table.device_samples.At({device, kWorkNames[w]});
    chunk_size_[w] = &table.chunk_size.At({device, kWorkNames[w]});
  }
  for (const DeviceWork work : {DeviceWork::kInference, DeviceWork::kTraining}) {
    const auto w = static_cast<size_t>(work);
    queue_duration_[w] = &table.device_queue.At({device, kWorkNames[w]});
  }
}

void DeviceMetrics::AddBusy(Phase phase, absl::Duration busy) {
  busy_[static_cast<size_t>(phase)]->Increment(absl::ToDoubleSeconds(busy));
}

void DeviceMetrics::CountChunk(DeviceWork work, int64_t rows) {
  const auto w = static_cast<size_t>(work);
  samples_[w]->Increment(static_cast<double>(rows));
  chunk_size_[w]->Observe(static_cast<double>(rows));
}

void DeviceMetrics::RecordQueued(DeviceWork work, absl::Duration queued) {
  queue_duration_[static_cast<size_t>(work)]->Observe(absl::ToDoubleSeconds(queued));
}

}  // namespace braid
