#include "server/batching/batch_policy.h"

#include <algorithm>

namespace braid {

BatchDecision DecideBatch(const QueueView& queue, absl::Time now, const BatchLimits& limits) {
  if (queue.rows == 0) {
    return WaitUntil{absl::InfiniteFuture()};
  }
  const absl::Time due = queue.oldest + limits.max_delay;
  if (queue.rows < limits.max_rows && now < due) {
    return WaitUntil{due};
  }
  const int64_t workers = std::max<int64_t>(queue.free_workers, 1);
  const int64_t share = (queue.rows + workers - 1) / workers;
  return TakeRows{std::min({std::max(share, kMinChunkRows), limits.max_rows, queue.rows})};
}

}  // namespace braid
