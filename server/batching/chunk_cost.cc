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

void ChunkCost::Begin(int64_t rows) {
  since_few_ = rows <= kDefaultMinChunkRows ? 0 : since_few_ + 1;
}

void ChunkCost::Record(int64_t rows, absl::Duration time) {
  constexpr double kMemory = 0.99;
  const double part = 1 / static_cast<double>(rows);
  const double row_time = absl::ToDoubleMicroseconds(time) * part;
  weights_ = weights_ * kMemory + 1;
  parts_ = parts_ * kMemory + part;
  row_times_ = row_times_ * kMemory + row_time;
  parts_squared_ = parts_squared_ * kMemory + part * part;
  parts_times_ = parts_times_ * kMemory + part * row_time;
  if (const std::optional<Line> line = Fit()) line_ = line;
  Size& size = sizes_[SizeOf(rows)];
  ++size.batches;
  const double share = std::max(1.0 / static_cast<double>(size.batches), 1 - kMemory);
  size.row_time += (row_time - size.row_time) * share;
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
  const double mean_part = parts_ / weights_;
  const double mean_row_time = row_times_ / weights_;
  const double variance = parts_squared_ / weights_ - mean_part * mean_part;
  // Batches all of about one size do not tell what a row costs.
  if (variance < 0.01 * mean_part * mean_part) {
    return std::nullopt;
  }
  const double slope = (parts_times_ / weights_ - mean_part * mean_row_time) / variance;
  const double fixed = std::clamp(slope, 0.0, MostFixed());
  const double row = mean_row_time - fixed * mean_part;
  const double least = 1e-6 * mean_row_time;
  // Rows that seem to cost nothing, or less: so it is, unless all batches are of a similar size.
  if (row < least && variance < 0.25 * mean_part * mean_part) {
    return std::nullopt;
  }
  return Line{fixed, std::max(row, least)};
}

double ChunkCost::MostFixed() const {
  double most = std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < sizes_.size(); ++k) {
    if (sizes_[k].batches >= kFewestBatches) {
      most = std::min(most, sizes_[k].row_time * std::ldexp(2.0, static_cast<int>(k)));
    }
  }
  return most;
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

int64_t ChunkCost::try_rows() const {
  const size_t few = SizeOf(kDefaultMinChunkRows);
  int64_t seen = 0;
  for (size_t k = 0; k <= few; ++k) {
    seen = std::max(seen, sizes_[k].batches);
  }
  return seen < kFewestBatches && since_few_ >= kTryAfter ? kDefaultMinChunkRows : 0;
}

}  // namespace braid
