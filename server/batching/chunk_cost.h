// Learns what batches cost by their number of rows: the smallest chunk that is worth handing to
// another worker, the largest batch that is worth the copy of a merge, and the batch with the most
// rows per second.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace braid {

// Used before anything is learned.
inline constexpr int64_t kDefaultMinChunkRows = 8;

// Not thread-safe. Owned by a queue.
class ChunkCost {
 public:
  // Counts a batch that is about to run.
  void Begin(int64_t rows);
  // Records the duration of a batch.
  void Record(int64_t rows, absl::Duration time);

  // Predicted duration of a batch; InfiniteDuration if unknown.
  absl::Duration Predict(int64_t rows) const;

  // Returns the batch size from which no further request is merged: the smallest size whose cost
  // per row is within 5 % of the best. Every 16th call returns 1 or the maximum instead, to measure
  // those.
  int64_t NextMergeRows();

  // Returns the batch size with the most rows per second, of 1, 2, 4, … and `max_rows`, without
  // sizes that take longer than `max_time`. As long as a larger size may be better, returns the
  // next one to measure. Prefers a smaller size to one that is less than 5 % better.
  int64_t BestRows(int64_t max_rows, absl::Duration max_time) const;

  // Smallest chunk that is worth splitting off for an idle worker. Each chunk has a fixed cost,
  // which includes waking the worker. The rows cost at least three times as much, so that splitting
  // wastes at most a quarter.
  int64_t min_chunk_rows() const;

  // Size of a sample batch to take if another worker is idle and many more rows wait; 0: none.
  // Samples are taken until a few small batches have run. Large batches do not reveal the fixed
  // cost, because two that run in parallel are slower than one alone.
  int64_t sample_rows() const;

 private:
  // Batches of 2^k to 2^(k+1) - 1 rows.
  struct SizeClass {
    int64_t batches = 0;
    // Microseconds per row: running mean, and the least of recent batches, which does not contain
    // delays by other threads.
    double row_time = 0;
    double least_row_time = std::numeric_limits<double>::infinity();
  };
  // cost(rows) = fixed + row * rows, in microseconds.
  struct LinearCost {
    double fixed;
    double row;
  };

  // Index into sizes_.
  size_t SizeOf(int64_t rows) const;
  // Least-squares fit to the recent batches; nullopt if their sizes are too similar.
  std::optional<LinearCost> Fit() const;
  // Upper bound of the fixed cost, from the mean of each size class.
  double MaxFixedCost() const;

  std::array<SizeClass, 32> sizes_;
  int64_t merge_calls_ = 0;

  // Exponentially weighted sums over about the last hundred batches, for a regression of the time
  // per row (microseconds) on 1 / rows. Errors thus count relative to the duration of their batch,
  // and small batches are not outweighed by large ones.
  double weights_ = 0;
  double inverse_rows_ = 0;
  double row_times_ = 0;
  double inverse_rows_squared_ = 0;
  double inverse_rows_times_ = 0;

  std::optional<LinearCost> line_;  // last successful fit

  static constexpr int64_t kSampleInterval = 32;
  // Batches since the last small one. The initial value schedules the first sample early.
  int64_t since_small_ = kSampleInterval - 8;
};

}  // namespace braid
