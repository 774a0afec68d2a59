// What is counted of a device slot.
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

// What rows go through a device for.
enum class DeviceWork { kInference, kTraining };
inline constexpr int kDeviceWorks = 2;

// Thread-safe.
class DeviceMetrics {
 public:
  // `metrics` outlives it.
  DeviceMetrics(Metrics* metrics, absl::string_view device);

  // Its worker spent `busy` on `phase`.
  void AddBusy(Phase phase, absl::Duration busy);
  // `rows` rows went through a forward pass together.
  void CountChunk(DeviceWork work, int64_t rows);
  // What its worker does next has waited for `queued`.
  void RecordQueued(DeviceWork work, absl::Duration queued);

 private:
  std::array<prometheus::Counter*, kPhases> busy_{};
  std::array<prometheus::Counter*, kDeviceWorks> samples_{};
  std::array<prometheus::Histogram*, kDeviceWorks> chunk_size_{};
  std::array<prometheus::Histogram*, kDeviceWorks> queue_duration_{};
};

}  // namespace braid
