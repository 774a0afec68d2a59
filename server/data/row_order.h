// Order in which a training job uses the rows of a dataset.
//
// All of it is computed from the seed, the epoch and the position. So the order is the same on
// every machine, any position can be asked for directly, and an interrupted job continues at any
// row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace braid {

// Pseudorandom permutation of [0, size), without memory for it: a Feistel network over the next
// power of four, repeated until the result is below `size` ("cycle walking", Black and Rogaway,
// 2002). Immutable. Thread-safe.
class Permutation {
 public:
  // Requires size >= 0.
  Permutation(int64_t size, uint64_t seed);

  // Requires 0 <= index < size.
  int64_t At(int64_t index) const;

 private:
  uint64_t Encrypt(uint64_t value) const;

  uint64_t size_;
  uint64_t seed_;
  int half_bits_ = 1;
};

// Splits rows into training and validation rows, the same in every epoch. Divides the rows into
// round(fraction * rows) ranges of about the same size and takes one random row of each for
// validation. Both parts keep the order of the rows. Immutable. Thread-safe.
class RowSplit {
 public:
  // Requires 0 < fraction < 1.
  RowSplit(int64_t rows, double validation_fraction, uint64_t seed);

  int64_t training_rows() const { return rows_ - validation_rows_; }
  int64_t validation_rows() const { return validation_rows_; }
  // Return the row of the dataset. Require an index in [0, training_rows()) or [0,
  // validation_rows()).
  int64_t TrainingRow(int64_t index) const;
  int64_t ValidationRow(int64_t index) const;

 private:
  // First row of a range.
  int64_t Begin(int64_t range) const;

  int64_t rows_;
  int64_t validation_rows_;
  uint64_t seed_;
};

// Draws rows with replacement, each with a probability proportional to its weight. Takes 8 bytes
// per row. Immutable. Thread-safe.
class WeightedDraw {
 public:
  // INVALID_ARGUMENT names the first weight that is negative or not finite; or if all are 0.
  static absl::StatusOr<WeightedDraw> Create(absl::Span<const double> weights);

  // Maps a uniformly distributed number to a row.
  int64_t Draw(uint64_t uniform) const;
  int64_t rows() const { return static_cast<int64_t>(sums_.size()); }

 private:
  explicit WeightedDraw(std::vector<double> sums) : sums_(std::move(sums)) {}

  std::vector<double> sums_;  // of all weights up to each row
};

// Maps a position in an epoch to a row. Immutable. Thread-safe.
class RowOrder {
 public:
  struct Options {
    int64_t rows = 0;
    uint64_t seed = 0;
    // Permutes the rows in a new order in each epoch. Has no effect on weighted draws.
    bool shuffle = true;
    // Leaves out the validation rows. `split` must be of `rows` rows.
    std::optional<RowSplit> split = std::nullopt;
    // Takes the validation rows instead; all rows without a split.
    bool validation = false;
    // Draws positions with replacement, as many as there are rows. Has one weight per row
    // of the part.
    std::shared_ptr<const WeightedDraw> weights = nullptr;
    // Length of a row of the dataset, such as that of a text. Batches then have rows of similar
    // length: the rows of each 50 full batches are sorted by length, with equal ones in their
    // order, cut into batches, and the batches permuted. Null: rows are not sorted.
    std::function<int64_t(int64_t row)> length = nullptr;
    // Rows of a batch, for `length`.
    int64_t batch_size = 1;
  };

  explicit RowOrder(Options options);

  // Number of positions in an epoch.
  int64_t size() const { return size_; }
  // Returns the rows at positions [begin, begin + rows.size()) of an epoch.
  void Fill(int64_t epoch, int64_t begin, absl::Span<int64_t> rows) const;

 private:
  // Returns the row of the dataset for a row of the part.
  int64_t RowOf(int64_t index) const;
  // Fill() without regard to length.
  void FillUnsorted(int64_t epoch, int64_t begin, absl::Span<int64_t> rows) const;
  // Returns the rows of the batches from number `window` * kSortedBatches on, in their final order.
  std::vector<int64_t> Window(int64_t epoch, int64_t window) const;

  Options options_;
  int64_t size_;
};

}  // namespace braid
