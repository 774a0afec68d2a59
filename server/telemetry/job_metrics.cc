#include "server/telemetry/job_metrics.h"

#include <algorithm>

#include "server/telemetry/metric_table.h"

namespace braid {
namespace {

constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

// The clock may have been set back. A histogram's sum must not decrease.
double Seconds(absl::Duration time) { return std::max(absl::ToDoubleSeconds(time), 0.0); }

}  // namespace

JobMetrics::JobMetrics(Metrics* metrics) : table_(*metrics->table_) {
  // Start at 0, so that rate() sees the first increment.
  table_.job_steps.At({});
  for (const absl::string_view kind : kJobKindLabels) {
    table_.job_rows.At({kind});
    table_.job_preemptions.At({kind});
    table_.job_pauses.At({kind});
    table_.job_queue_duration.At({kind});
    for (const absl::string_view state : kEndedJobLabels) {
      table_.job_duration.At({kind, state});
    }
    for (int code = 1; code <= kLastCode; ++code) {
      table_.job_failures.At({kind, absl::StatusCodeToString(static_cast<absl::StatusCode>(code))});
    }
  }
}

void JobMetrics::CountRows(absl::string_view kind, int64_t rows) {
  table_.job_rows.At({kind}).Increment(static_cast<double>(rows));
}

void JobMetrics::CountSteps(int64_t steps) {
  table_.job_steps.At({}).Increment(static_cast<double>(steps));
}

void JobMetrics::RecordQueued(absl::string_view kind, absl::Duration queued) {
  table_.job_queue_duration.At({kind}).Observe(Seconds(queued));
}

void JobMetrics::RecordEnd(absl::string_view kind, absl::string_view state,
                           absl::Duration duration) {
  table_.job_duration.At({kind, state}).Observe(Seconds(duration));
}

void JobMetrics::CountFailure(absl::string_view kind, absl::StatusCode code) {
  table_.job_failures.At({kind, absl::StatusCodeToString(code)}).Increment();
}

void JobMetrics::CountPreemption(absl::string_view kind) {
  table_.job_preemptions.At({kind}).Increment();
}

void JobMetrics::CountPause(absl::string_view kind) { table_.job_pauses.At({kind}).Increment(); }

}  // namespace braid
