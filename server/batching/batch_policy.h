// When a free worker takes a batch from a model's queue, and how large: a pure function of what it
// sees.
#pragma once

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace braid {

// The workers of a model that are not at work, the one that asks among them.
struct IdleWorkers {
  int64_t count = 1;
  // A batch smaller than this costs more in hand-over than it gains by running beside another.
  int64_t min_chunk_rows = 1;
  // One of so many rows gains nothing by another request's.
  int64_t merge_rows = std::numeric_limits<int64_t>::max();
  // Not 0: where there are several, and far more rows, so many are taken alone, for what they cost
  // to be seen.
  int64_t try_rows = 0;
};

struct QueueView {
  int64_t rows = 0;
  // When the request that has waited longest came.
  absl::Time oldest;
  // Of the request that is next.
  int64_t head_rows = 0;
  IdleWorkers idle;
};

struct BatchLimits {
  int64_t max_rows = 1;
  // How long a batch that is not full waits for more.
  absl::Duration max_delay;
  // Ascending, none over max_rows: a batch of one of these sizes does not wait, and is not made
  // larger but to be of another.
  std::vector<int64_t> preferred_rows = {};
  // Of a request that is larger than this, no more at once. 0: max_rows.
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

// Takes an even share of the queue, for as many of the idle workers as get their min_chunk_rows
// each; at most `limits.max_rows`. A batch that is not full waits only if the limits say so; an
// empty queue for ever.
BatchDecision DecideBatch(const QueueView& queue, absl::Time now, const BatchLimits& limits);

// How many idle workers to wake for `rows` that wait. Rows that are not worth a chunk need one, or
// none where a batch that runs is brief: its worker is done before another wakes up.
int64_t WorkersWanted(int64_t rows, int64_t min_chunk_rows, bool brief_batch_runs);

}  // namespace braid
