// Metrics of jobs that are updated by events. StateMetrics has those of running jobs.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/telemetry/metrics.h"

namespace braid {

struct MetricTable;

// Kinds of jobs and states of ended jobs, as labels.
inline constexpr absl::string_view kJobKindLabels[] = {"train", "infer"};
inline constexpr absl::string_view kEndedJobLabels[] = {"succeeded", "failed", "cancelled"};

// Owned by the job scheduler. No label names a job, so the number of series is bounded. `kind` is
// one of kJobKindLabels. Thread-safe.
class JobMetrics {
 public:
  // Creates the series. `metrics` outlives the object.
  explicit JobMetrics(Metrics* metrics);

  // Counts work that jobs have done. `steps`: of training jobs.
  void CountRows(absl::string_view kind, int64_t rows);
  void CountSteps(int64_t steps);
  // Records the time that a job was queued until it started.
  void RecordQueued(absl::string_view kind, absl::Duration queued);
  // Records the time from the first start of a job to its end. `state`: one of kEndedJobLabels.
  void RecordEnd(absl::string_view kind, absl::string_view state, absl::Duration duration);
  // Counts a job that failed.
  void CountFailure(absl::string_view kind, absl::StatusCode code);
  // Counts a job that stopped for one of higher priority.
  void CountPreemption(absl::string_view kind);
  // Counts a job that a user paused.
  void CountPause(absl::string_view kind);

 private:
  MetricTable& table_;
};

}  // namespace braid
