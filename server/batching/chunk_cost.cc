#include "server/batching/chunk_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace braid {
namespace {

// To wake a worker and to gather what it made.
constexpr double kHandOverMicroseconds = 50;
// What the rows of a chunk take, as a multiple of what each chunk takes without any.
constexpr double kWorth = 3;
// Batches of a size that tell what one costs.
constexpr int64_t kFewestBatches = 4;
// No chunk is held to be worth less than this many rows, however cheap they are.
constexpr double kLargestMinChunk = 4096;

}  // namespace

void ChunkCost::Record(int64_t rows, absl::Duration time) {
  constexpr double kMemory = 0.99;
  const auto n = static_cast<double>(rows);
  const double t = absl::ToDoubleMicroseconds(time);
  weights_ = weights_ * kMemory + 1;
  rows_ = rows_ * kMemory + n;
  times_ = times_ * kMemory + t;
  rows_squared_ = rows_squared_ * kMemory + n * n;
  rows_times_ = rows_times_ * kMemory + n * t;
  if (const std::optional<Line> line = Fit()) line_ = line;
  Size& size = sizes_[SizeOf(rows)];
  ++size.batches;
  const double share = std::max(1.0 / static_cast<double>(size.batches), 1 - kMemory);
  size.row_time += (t / n - size.row_time) * share;
}

int64_t ChunkCost::merge_rows() {
  constexpr int64_t kTryEvery = 16;
  constexpr double kAsGood = 1.05;
  if (++asked_ % kTryEvery == 0) {
    return asked_ / kTryEvery % 2 == 0 ? 1 : std::numeric_limits<int64_t>::max();
  }
  double best = std::numeric_limits<double>::infinity();
  for (const Size& size : sizes_) {
    best = size.batches >= kFewestBatches ? std::min(best, size.row_time) : best;
  }
  for (size_t k = 0; k < sizes_.size(); ++k) {
    if (sizes_[k].batches >= kFewestBatches && sizes_[k].row_time <= best * kAsGood) {
      return int64_t{1} << k;
    }
  }
  return std::numeric_limits<int64_t>::max();
}

std::optional<ChunkCost::Line> ChunkCost::Fit() const {
  constexpr double kFewest = 8;
  if (weights_ < kFewest) {
    return std::nullopt;
  }
  const double mean_rows = rows_ / weights_;
  const double mean_time = times_ / weights_;
  const double variance = rows_squared_ / weights_ - mean_rows * mean_rows;
  // Batches all of about one size do not tell what a row costs.
  if (variance < std::max(0.1, 0.01 * mean_rows * mean_rows)) {
    return std::nullopt;
  }
  const double row = (rows_times_ / weights_ - mean_rows * mean_time) / variance;
  // Rows that seem to cost less than nothing, or as good as nothing, do not tell either.
  if (row * mean_rows < 1e-6 * mean_time) {
    return std::nullopt;
  }
  return Line{std::max(mean_time - row * mean_rows, 0.0), row};
}

absl::Duration ChunkCost::Predict(int64_t rows) const {
  const auto n = static_cast<double>(rows);
  if (line_) {
    return absl::Microseconds(line_->fixed + line_->row * n);
  }
  const Size& size = sizes_[SizeOf(rows)];
  return size.batches >= kFewestBatches ? absl::Microseconds(size.row_time * n)
                                        : absl::InfiniteDuration();
}

size_t ChunkCost::SizeOf(int64_t rows) const {
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(rows)));
  return std::min(width, sizes_.size()) - 1;
}

int64_t ChunkCost::min_chunk_rows() const {
  if (!line_) {
    return kDefaultMinChunkRows;
  }
  const double chunk = kWorth * (kHandOverMicroseconds + line_->fixed) / line_->row;
  return static_cast<int64_t>(std::ceil(std::clamp(chunk, 1.0, kLargestMinChunk)));
}

}  // namespace braid
