// Metrics of a device slot.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/phase.h"

namespace braid {

// Purpose of work on a device.
enum class DeviceWork { kInference, kTraining, kJob };
inline constexpr int kDeviceWorks = 3;

// Owned by a worker. Thread-safe.
class DeviceMetrics {
 public:
  // `metrics` outlives it.
  DeviceMetrics(Metrics* metrics, absl::string_view device);

  // Adds busy time of the worker in `phase`.
  void AddBusy(Phase phase, absl::Duration busy);
  // Counts a forward pass of `rows` rows.
  void CountChunk(DeviceWork work, int64_t rows);
  // Records the queueing time of the worker's next work, which is not kJob.
  void RecordQueued(DeviceWork work, absl::Duration queued);

 private:
  std::array<prometheus::Counter*, kPhases> busy_{};
  std::array<prometheus::Counter*, kDeviceWorks> samples_{};
  std::array<prometheus::Histogram*, kDeviceWorks> chunk_size_{};
  std::array<prometheus::Histogram*, kDeviceWorks> queue_duration_{};
};

}  // namespace braid
