// When a free worker takes a batch from a model's queue, and how large: a pure function of what it
// sees.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/time/time.h"

namespace braid {

// A chunk smaller than this costs more in hand-over than it gains by running beside another.
inline constexpr int64_t kMinChunkRows = 8;

struct QueueView {
  int64_t rows = 0;
  // When the request at the head came.
  absl::Time oldest;
  // Workers of the model that are not at work, the one that asks among them.
  int64_t free_workers = 1;
};

struct BatchLimits {
  int64_t max_rows = 1;
  // How long a batch that is not full waits for more.
  absl::Duration max_delay;
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

// Takes an even share of the queue for each free worker, at least kMinChunkRows, at most
// `limits.max_rows`. A batch that is not full waits only if the limits say so; an empty queue for
// ever.
BatchDecision DecideBatch(const QueueView& queue, absl::Time now, const BatchLimits& limits);

}  // namespace braid
