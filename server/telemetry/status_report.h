// Report of what the server does, for /status.json. docs/reference/http.md describes the JSON.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/phase.h"

namespace braid {

struct DeviceReport {
  std::string name;      // of the slot
  std::string kind;      // "cpu", "cuda"
  std::string hardware;  // product name; empty for a CPU slot
  bool healthy = true;
  std::array<absl::Duration, kPhases> busy = {};  // by phase, since the server started
  int64_t rows = 0;                               // of all forward passes
  // Memory in bytes. For a GPU that NVML reports: used by all processes. Otherwise: used by models
  // and trainers.
  int64_t memory = 0;
  std::optional<int64_t> memory_total = std::nullopt;  // bytes; nullopt: unknown
};

struct ModelReport {
  std::string name;
  std::vector<int64_t> versions;  // served, ascending
  ModelCounters counters;
};

struct TrainerReport {
  std::string name;
  std::string model;
  bool failed = false;  // an update was interrupted
  int64_t step = 0;
  std::optional<double> loss = std::nullopt;  // nullopt: none yet
  double lr = 0;
  int64_t memory = 0;  // bytes, over all devices
  std::vector<std::string> devices = {};
};

struct JobReport {
  std::string id;
  std::string kind;  // "train", "infer"
  std::string model;
  std::string state;  // "RUNNING", …
  int64_t rows = 0;
  int64_t total_rows = 0;
  int64_t step = 0;
  std::optional<double> loss = std::nullopt;
  double rows_per_second = 0;
};

struct JobsReport {
  std::vector<std::pair<std::string, int64_t>> counts;  // of all jobs, by state
  // At most StatusReader::kMaxJobsInState running jobs, then as many queued and as many paused
  // ones, then the StatusReader::kMaxEndedJobs newest ended jobs.
  std::vector<JobReport> jobs;
};

struct StatusReport {
  std::string version;
  absl::Status readiness;
  absl::Duration uptime;
  int64_t requests = 0;  // in flight
  std::vector<DeviceReport> devices = {};
  std::vector<ModelReport> models = {};
  std::vector<TrainerReport> trainers = {};
  absl::StatusOr<JobsReport> jobs = JobsReport();  // an error: why the server has none
};

// Returns the report as a JSON object. Replaces bytes that are not UTF-8; numbers that are not
// finite become null.
std::string ToJson(const StatusReport& report);

}  // namespace braid
