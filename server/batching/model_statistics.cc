#include "server/batching/model_statistics.h"

#include <algorithm>

namespace braid {

void ModelStatistics::RecordBatch(int64_t rows, absl::Time start, const BatchDurations& durations) {
  const absl::MutexLock lock(&mu_);
  counts_.last_inference = std::max(counts_.last_inference, start);
  ++counts_.batches;
  counts_.by_rows[rows].Add(durations);
}

void ModelStatistics::RecordSuccess(int64_t rows, absl::Duration total, absl::Duration queued,
                                    const BatchDurations& durations) {
  const absl::MutexLock lock(&mu_);
  counts_.rows += rows;
  counts_.success.Add(total);
  counts_.queue.Add(queued);
  counts_.request.Add(durations);
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
