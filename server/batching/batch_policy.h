// Decides when an idle worker takes a batch from a queue, and how many rows. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace braid {

// The idle workers of a model, and what ChunkCost has learned about its batches.
struct IdleWorkers {
  // Idle workers, including the one that asks.
  int64_t count = 1;
  // Smallest batch for which handing rows to another worker pays off.
  int64_t min_chunk_rows = 1;
  // Batch size from which adding another request no longer reduces the cost per row.
  int64_t merge_rows = std::numeric_limits<int64_t>::max();
  // If not 0 and if several workers are idle and many more rows wait: takes a batch of this many
  // rows, to measure its cost.
  int64_t sample_rows = 0;
};

struct QueueView {
  // Rows that wait.
  int64_t rows = 0;
  // Arrival of the oldest request.
  absl::Time oldest;
  // Rows of the next request.
  int64_t head_rows = 0;
  IdleWorkers idle;
};

struct BatchLimits {
  int64_t max_rows = 1;
  // How long a batch that is not full waits for more rows.
  absl::Duration max_delay;
  // Ascending, at most max_rows. A batch of one of these sizes does not wait, and grows only to
  // another of these sizes.
  std::vector<int64_t> preferred_rows = {};
  // Largest chunk of a request that exceeds it. 0: max_rows.
  int64_t chunk_rows = 0;
};

struct TakeRows {
  int64_t rows;
  bool operator==(const TakeRows&) const = default;
};
struct WaitUntil {
  absl::Time time;
  bool operator==(const WaitUntil&) const = default;
};
using BatchDecision = std::variant<TakeRows, WaitUntil>;

// Takes an equal share of the queue for each idle worker, as long as each share has min_chunk_rows,
// and at most limits.max_rows. A batch that is not full waits only if the limits require it. An
// empty queue waits forever.
BatchDecision DecideBatch(const QueueView& queue, absl::Time now, const BatchLimits& limits);

// Returns how many idle workers to wake for `rows` waiting rows: one per min_chunk_rows. Fewer rows
// need one worker, or none if a short batch is running: its worker finishes before another wakes.
int64_t WorkersToWake(int64_t rows, int64_t min_chunk_rows, bool short_batch_runs);

}  // namespace braid
