// Metrics of the server's state, which is read at each scrape.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/telemetry/description.h"

namespace braid {

struct OwnedMemory {
  std::string owner;  // "models", "trainers", "allocator", "cache"
  int64_t bytes = 0;
};

struct DeviceState {
  std::string name;
  std::string kind;  // "cpu", "cuda"
  std::string gpu;   // NVML's index; empty for a CPU slot or if unknown
  std::string uuid;  // UUID of the GPU
  bool healthy = true;
  std::vector<OwnedMemory> memory = {};  // known owners
};

struct ServedVersionState {
  std::string model;
  int64_t version = 0;
};

struct JobsInState {
  std::string kind;   // "train", "infer"
  std::string state;  // "queued", "running", …
  int64_t jobs = 0;
};

struct RunningJobState {
  std::string id;
  std::string kind;
  std::string model;
  absl::Time started;        // first start
  absl::Time last_progress;  // since the last start
  int64_t rows = 0;
  int64_t total_rows = 0;   // 0: not known yet
  int64_t steps = 0;        // of a training job
  int64_t total_steps = 0;  // of a training job; 0: not known yet
  double rows_per_second = 0;
  double steps_per_second = 0;  // of a training job
  double wait_seconds = 0;
  int64_t skipped_rows = 0;
  std::optional<double> loss = std::nullopt;  // of a training job
};

struct ServerState {
  std::string version;
  int64_t requests = 0;       // in flight
  int64_t request_bytes = 0;  // in flight
  std::vector<ServedVersionState> served = {};
  std::vector<DeviceState> devices = {};
  int64_t running_trainers = 0;
  int64_t failed_trainers = 0;
  int64_t trainers_on_disk = 0;
  std::vector<JobsInState> jobs = {};
  std::vector<RunningJobState> running_jobs = {};
  std::optional<int64_t> dataset_bytes = std::nullopt;  // nullopt: no uploads
  std::optional<int64_t> dataset_quota = std::nullopt;  // nullopt: no quota
};

// Thread-safe.
class StateMetrics final : public prometheus::Collectable {
 public:
  // Scrapes call `read` on their threads, one at a time. It must not delay requests.
  explicit StateMetrics(std::function<ServerState()> read) : read_(std::move(read)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

  // Returns the descriptions of all metrics.
  static const std::vector<MetricDescription>& Descriptions();

 private:
  const std::function<ServerState()> read_;
};

}  // namespace braid
