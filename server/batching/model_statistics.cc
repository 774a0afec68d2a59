#include "server/batching/model_statistics.h"

#include <algorithm>

namespace braid {

void ModelStatistics::RecordBatch(int64_t rows, int64_t requests, absl::Time start,
                                  const BatchDurations& durations) {
  const absl::MutexLock lock(&mu_);
  counts_.last_inference = std::max(counts_.last_inference, start);
  counts_.rows += rows;
  ++counts_.batches;
  Batches& same_rows = counts_.by_rows[rows];
  same_rows.copy_in.Add(durations.copy_in);
  same_rows.forward.Add(durations.forward);
  same_rows.copy_out.Add(durations.copy_out);
  counts_.request.copy_in.Add(durations.copy_in, requests);
  counts_.request.forward.Add(durations.forward, requests);
  counts_.request.copy_out.Add(durations.copy_out, requests);
}

void ModelStatistics::RecordSuccess(absl::Duration total, absl::Duration queued) {
  const absl::MutexLock lock(&mu_);
  counts_.success.Add(total);
  counts_.queue.Add(queued);
}

void ModelStatistics::RecordFailure(absl::Duration total) {
  const absl::MutexLock lock(&mu_);
  counts_.failure.Add(total);
}

ModelStatistics::Counts ModelStatistics::counts() const {
  const absl::MutexLock lock(&mu_);
  return counts_;
}

}  // namespace braid
