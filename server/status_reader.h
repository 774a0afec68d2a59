// Reader of what the server does, for its status page.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/devices/device_pool.h"
#include "server/jobs/jobs.h"
#include "server/server_state.h"
#include "server/telemetry/health.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/status_report.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// Memory of a GPU in bytes, over all processes.
struct GpuMemoryUse {
  int64_t used = 0;
  int64_t total = 0;
};

// Thread-safe. Takes only locks that are held briefly; a change of a job's record waits for the
// disk.
class StatusReader {
 public:
  // The report has at most kMaxJobsInState jobs that run, then as many that are queued, then as
  // many that are paused, then the newest that have ended.
  static constexpr int64_t kMaxJobsInState = 100;
  static constexpr int64_t kMaxEndedJobs = 10;

  // Returns the memory of the GPU with this UUID; nullopt if it is unknown.
  using ReadMemory = std::function<std::optional<GpuMemoryUse>(const std::string& uuid)>;

  // All pointers outlive the reader. The jobs have started.
  struct Sources {
    absl::Time start;  // of the server
    ServerStateReader state;
    const Health* health = nullptr;
    const Metrics* metrics = nullptr;
    const TrainerRegistry* trainers = nullptr;
    const Jobs* jobs = nullptr;
    const DevicePool* pool = nullptr;
    ReadMemory read_memory;
  };

  explicit StatusReader(Sources sources);

  StatusReport Read() const;

 private:
  const Sources sources_;
};

}  // namespace braid
