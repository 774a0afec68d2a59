// What a batch costs by its rows, learnt from those that ran: how small a chunk is worth its
// hand-over to another worker, and how large a batch is worth the copy that merging requests takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace braid {

// Before anything is learnt.
inline constexpr int64_t kDefaultMinChunkRows = 8;

// Not thread-safe.
class ChunkCost {
 public:
  // A batch of `rows` rows is about to run.
  void Begin(int64_t rows);
  // One took `time`.
  void Record(int64_t rows, absl::Duration time);

  // Of a batch of `rows` rows; InfiniteDuration: not known yet.
  absl::Duration Predict(int64_t rows) const;

  // How many rows a batch has before no other request is merged into it: those from which on a row
  // costs about as little as it ever does. Now and then more or fewer, to see what they cost.
  int64_t merge_rows();

  // Of the chunks that a batch is split into for idle workers. A chunk's rows cost at least three
  // times what it costs without any, a worker's waking included: to split wastes a quarter at most.
  int64_t min_chunk_rows() const;

  // As many rows as are to be taken alone, where another worker is idle and there are many more; 0:
  // none. So a few times, until some batches of few rows have run: large ones do not tell what one
  // costs without any, for two that run side by side take longer than one alone.
  int64_t try_rows() const;

 private:
  // Of batches of 2^k to 2^(k+1) - 1 rows.
  struct Size {
    int64_t batches = 0;
    double row_time = 0;  // a running mean, in microseconds
  };

  // Where batches of `rows` rows are among sizes_.
  size_t SizeOf(int64_t rows) const;

  std::array<Size, 32> sizes_;
  int64_t asked_ = 0;
  struct Line {
    double fixed;  // microseconds
    double row;
  };
  // What the last batches lie on; nullopt: they do not tell.
  std::optional<Line> Fit() const;
  // What a batch may cost without any rows, at most, by what those of each size have taken.
  double MostFixed() const;

  // For least squares over the last hundred batches or so: sums, each batch weighed less the longer
  // it is ago. A row's time, in microseconds, over the part of the batch that the row is: so an
  // error counts by what part of the batch's time it is, and what few rows took is not lost beside
  // many.
  double weights_ = 0;
  double parts_ = 0;
  double row_times_ = 0;
  double parts_squared_ = 0;
  double parts_times_ = 0;

  std::optional<Line> line_;  // the last that batches told

  static constexpr int64_t kTryAfter = 32;
  int64_t since_few_ = kTryAfter - 8;  // batches begun since one of few rows; at first, soon
};

}  // namespace braid
