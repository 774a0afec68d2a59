#include "server/batching/batch_policy.h"

#include <algorithm>
#include <iterator>

namespace braid {
namespace {

// Returns the largest of `sizes` that is at most `rows`; 0 if there is none.
int64_t LargestUpTo(const std::vector<int64_t>& sizes, int64_t rows) {
  const auto after = std::upper_bound(sizes.begin(), sizes.end(), rows);
  return after == sizes.begin() ? 0 : *std::prev(after);
}

// True if a batch of sample_rows should be taken. Requires that batch sizes are not configured, and
// that enough rows remain to hide the cost of the sample.
bool TakesSample(const QueueView& queue, const BatchLimits& limits) {
  constexpr int64_t kMinRatio = 8;
  return queue.idle.sample_rows > 0 && queue.idle.count > 1 && limits.chunk_rows == 0 &&
         limits.max_delay == absl::ZeroDuration() &&
         std::min(queue.rows, limits.max_rows) >= kMinRatio * queue.idle.sample_rows;
}

}  // namespace

BatchDecision DecideBatch(const QueueView& queue, absl::Time now, const BatchLimits& limits) {
  if (queue.rows == 0) {
    return WaitUntil{absl::InfiniteFuture()};
  }
  int64_t max_take = std::min(limits.max_rows, queue.rows);
  if (limits.chunk_rows > 0 && queue.head_rows > limits.chunk_rows) {
    max_take = std::min(max_take, limits.chunk_rows);
  }
  const absl::Time due = queue.oldest + limits.max_delay;
  const int64_t preferred = LargestUpTo(limits.preferred_rows, max_take);
  if (queue.rows < limits.max_rows && preferred == 0 && now < due) {
    return WaitUntil{due};
  }
  const int64_t worthwhile = queue.rows / std::max<int64_t>(queue.idle.min_chunk_rows, 1);
  const int64_t shares = std::clamp<int64_t>(worthwhile, 1, std::max<int64_t>(queue.idle.count, 1));
  const int64_t rows = std::min((queue.rows + shares - 1) / shares, max_take);
  if (preferred == 0) {
    return TakeRows{TakesSample(queue, limits) ? queue.idle.sample_rows : rows};
  }
  const int64_t preferred_share = LargestUpTo(limits.preferred_rows, rows);
  const int64_t share = preferred_share > 0 ? preferred_share : limits.preferred_rows.front();
  // A request that fits into the batch is not cut only to reach a preferred size.
  const bool whole = shares == 1 && queue.head_rows <= max_take;
  return TakeRows{whole ? std::max(share, queue.head_rows) : share};
}

int64_t WorkersToWake(int64_t rows, int64_t min_chunk_rows, bool short_batch_runs) {
  const int64_t chunks = rows / std::max<int64_t>(min_chunk_rows, 1);
  const int64_t min_workers = rows > 0 && !short_batch_runs ? 1 : 0;
  return std::max(chunks, min_workers);
}

}  // namespace braid
