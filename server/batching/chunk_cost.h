// What a batch costs by its rows, learnt from those that ran, and from it how small a chunk is
// worth its hand-over to another worker.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace braid {

// Before anything is learnt.
inline constexpr int64_t kDefaultMinChunkRows = 8;

// Least squares over the last hundred batches or so: a fixed cost and one of each row. Not
// thread-safe.
class ChunkCost {
 public:
  // A batch of `rows` rows took `time`.
  void Record(int64_t rows, absl::Duration time);

  // Of the chunks that a batch is split into for idle workers. A chunk's rows cost at least as much
  // as to wake a worker, and a quarter of what a batch costs without any rows.
  int64_t min_chunk_rows() const;

 private:
  // Sums over the batches, each weighed less the longer it is ago; times in microseconds.
  double weights_ = 0;
  double rows_ = 0;
  double times_ = 0;
  double rows_squared_ = 0;
  double rows_times_ = 0;
};

}  // namespace braid
