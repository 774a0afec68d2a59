#include "server/batching/chunk_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace braid {
namespace {

// Cost of waking a worker and of gathering its outputs.
constexpr double kHandOverMicroseconds = 50;
// Minimum ratio of a chunk's row cost to its fixed cost.
constexpr double kMinRowToFixedRatio = 3;
// Batches of a size class that are needed before its mean counts.
constexpr int64_t kMinBatches = 4;
// Costs per row that differ by less count as equal.
constexpr double kTolerance = 1.05;
// Upper limit of min_chunk_rows(), for very cheap rows.
constexpr double kMaxMinChunk = 4096;

}  // namespace

void ChunkCost::Begin(int64_t rows) {
  since_small_ = rows <= kDefaultMinChunkRows ? 0 : since_small_ + 1;
}

void ChunkCost::Record(int64_t rows, absl::Duration time) {
  constexpr double kDecay = 0.99;
  const double inverse = 1 / static_cast<double>(rows);
  const double row_time = absl::ToDoubleMicroseconds(time) * inverse;
  weights_ = weights_ * kDecay + 1;
  inverse_rows_ = inverse_rows_ * kDecay + inverse;
  row_times_ = row_times_ * kDecay + row_time;
  inverse_rows_squared_ = inverse_rows_squared_ * kDecay + inverse * inverse;
  inverse_rows_times_ = inverse_rows_times_ * kDecay + inverse * row_time;
  if (const std::optional<LinearCost> line = Fit()) line_ = line;
  SizeClass& size = sizes_[SizeOf(rows)];
  ++size.batches;
  const double share = std::max(1.0 / static_cast<double>(size.batches), 1 - kDecay);
  size.row_time += (row_time - size.row_time) * share;
  size.least_row_time = std::min(row_time, size.least_row_time / kDecay);
}

int64_t ChunkCost::NextMergeRows() {
  constexpr int64_t kExploreInterval = 16;
  if (++merge_calls_ % kExploreInterval == 0) {
    return merge_calls_ / kExploreInterval % 2 == 0 ? 1 : std::numeric_limits<int64_t>::max();
  }
  double best = std::numeric_limits<double>::infinity();
  for (const SizeClass& size : sizes_) {
    best = size.batches >= kMinBatches ? std::min(best, size.row_time) : best;
  }
  for (size_t k = 0; k < sizes_.size(); ++k) {
    if (sizes_[k].batches >= kMinBatches && sizes_[k].row_time <= best * kTolerance) {
      return int64_t{1} << k;
    }
  }
  return std::numeric_limits<int64_t>::max();
}

int64_t ChunkCost::BestRows(int64_t max_rows, absl::Duration max_time) const {
  constexpr int kMaxWorse = 2;  // one size may be worse by chance
  const double limit = absl::ToDoubleMicroseconds(max_time);
  const size_t last = SizeOf(max_rows);
  double best = std::numeric_limits<double>::infinity();
  int64_t best_rows = 1;
  int worse = 0;
  for (size_t k = 0; k <= last && worse < kMaxWorse; ++k) {
    const int64_t rows = k == last ? max_rows : int64_t{1} << k;
    const bool measured = sizes_[k].batches >= kMinBatches;
    const auto n = static_cast<double>(rows);
    const double time = measured ? sizes_[k].row_time * n
                        : line_  ? line_->fixed + line_->row * n
                                 : best * n;
    if (k > 0 && time > limit) {
      break;
    }
    if (!measured) {
      return rows;
    }
    if (sizes_[k].least_row_time * kTolerance < best) {
      best = sizes_[k].least_row_time;
      best_rows = rows;
      worse = 0;
    } else {
      ++worse;
    }
  }
  return best_rows;
}

std::optional<ChunkCost::LinearCost> ChunkCost::Fit() const {
  constexpr double kMinWeight = 8;
  if (weights_ < kMinWeight) {
    return std::nullopt;
  }
  const double mean_inverse = inverse_rows_ / weights_;
  const double mean_row_time = row_times_ / weights_;
  const double variance = inverse_rows_squared_ / weights_ - mean_inverse * mean_inverse;
  // The slope is undetermined if all batches have about the same size.
  if (variance < 0.01 * mean_inverse * mean_inverse) {
    return std::nullopt;
  }
  const double slope = (inverse_rows_times_ / weights_ - mean_inverse * mean_row_time) / variance;
  const double fixed = std::clamp(slope, 0.0, MaxFixedCost());
  const double row = mean_row_time - fixed * mean_inverse;
  const double least = 1e-6 * mean_row_time;
  // Accepts a row cost of about zero or less only if the batch sizes vary enough.
  if (row < least && variance < 0.25 * mean_inverse * mean_inverse) {
    return std::nullopt;
  }
  return LinearCost{fixed, std::max(row, least)};
}

double ChunkCost::MaxFixedCost() const {
  double bound = std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < sizes_.size(); ++k) {
    if (sizes_[k].batches >= kMinBatches) {
      bound = std::min(bound, sizes_[k].row_time * std::ldexp(2.0, static_cast<int>(k)));
    }
  }
  return bound;
}

absl::Duration ChunkCost::Predict(int64_t rows) const {
  const auto n = static_cast<double>(rows);
  if (line_) {
    return absl::Microseconds(line_->fixed + line_->row * n);
  }
  const SizeClass& size = sizes_[SizeOf(rows)];
  return size.batches >= kMinBatches ? absl::Microseconds(size.row_time * n)
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
  const double chunk = kMinRowToFixedRatio * (kHandOverMicroseconds + line_->fixed) / line_->row;
  return static_cast<int64_t>(std::ceil(std::clamp(chunk, 1.0, kMaxMinChunk)));
}

int64_t ChunkCost::sample_rows() const {
  const size_t small = SizeOf(kDefaultMinChunkRows);
  int64_t seen = 0;
  for (size_t k = 0; k <= small; ++k) {
    seen = std::max(seen, sizes_[k].batches);
  }
  return seen < kMinBatches && since_small_ >= kSampleInterval ? kDefaultMinChunkRows : 0;
}

}  // namespace braid
