#include "server/data/row_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/random_seed.h"

namespace braid {
namespace {

constexpr int kRounds = 6;

// Random streams that are derived from the seed of a job.
enum Stream : uint64_t { kShuffle = 1, kSplit = 2, kDraw = 3, kBatches = 4 };

// Batches whose rows are sorted by length together.
constexpr int64_t kSortedBatches = 50;

// Returns a * b / c without overflow. Requires non-negative numbers and a <= c.
int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(a) * static_cast<uint64_t>(b) /
                              static_cast<uint64_t>(c));
}

// Maps a uniformly distributed number to [0, size).
int64_t Below(uint64_t uniform, int64_t size) {
  return static_cast<int64_t>(
      static_cast<unsigned __int128>(uniform) * static_cast<uint64_t>(size) >> 64U);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed)
    : size_(static_cast<uint64_t>(size)), seed_(seed) {
  while (half_bits_ < 32 && uint64_t{1} << (2 * half_bits_) < size_) {
    ++half_bits_;
  }
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = MixSeed(seed_ + round, right) & mask;
    left = std::exchange(right, left ^ mixed);
  }
  return left << half_bits_ | right;
}

int64_t Permutation::At(int64_t index) const {
  // The domain has fewer than 4 * size values (or is 4), so this takes fewer than 4 steps on
  // average.
  auto value = static_cast<uint64_t>(index);
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

RowSplit::RowSplit(int64_t rows, double validation_fraction, uint64_t seed)
    : rows_(rows),
      validation_rows_(std::clamp<int64_t>(
          std::llround(validation_fraction * static_cast<double>(rows)), 0, rows)),
      seed_(MixSeed(seed, kSplit)) {}

int64_t RowSplit::Begin(int64_t range) const { return MulDiv(range, rows_, validation_rows_); }

int64_t RowSplit::ValidationRow(int64_t index) const {
  const int64_t begin = Begin(index);
  return begin + Below(MixSeed(seed_, static_cast<uint64_t>(index)), Begin(index + 1) - begin);
}

int64_t RowSplit::TrainingRow(int64_t index) const {
  if (validation_rows_ == 0) {
    return index;
  }
  // Begin(r) - r training rows come before range r. Finds the last range that begins at or before
  // the row.
  int64_t low = 0;
  int64_t high = validation_rows_ - 1;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (Begin(middle) - middle <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t row = index + low;
  return row < ValidationRow(low) ? row : row + 1;
}

absl::StatusOr<WeightedDraw> WeightedDraw::Create(absl::Span<const double> weights) {
  std::vector<double> sums;
  sums.reserve(weights.size());
  double sum = 0;
  for (size_t row = 0; row < weights.size(); ++row) {
    if (!std::isfinite(weights[row]) || weights[row] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, ": weight ", weights[row],
                                                     " (expected a finite number of at least 0)"));
    }
    sum += weights[row];
    sums.push_back(sum);
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights sum to ", sum, " (expected a finite, positive sum)"));
  }
  return WeightedDraw(std::move(sums));
}

int64_t WeightedDraw::Draw(uint64_t uniform) const {
  // The product may be rounded up to the sum.
  const double at = std::min(static_cast<double>(uniform >> 11U) * 0x1p-53 * sums_.back(),
                             std::nextafter(sums_.back(), 0.0));
  // The first row whose sum exceeds `at` has a positive weight.
  const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
  return found - sums_.begin();
}

RowOrder::RowOrder(Options options) : options_(std::move(options)), size_(options_.rows) {
  if (options_.split.has_value()) {
    size_ =
        options_.validation ? options_.split->validation_rows() : options_.split->training_rows();
  }
}

int64_t RowOrder::RowOf(int64_t index) const {
  if (!options_.split.has_value()) {
    return index;
  }
  return options_.validation ? options_.split->ValidationRow(index)
                             : options_.split->TrainingRow(index);
}

void RowOrder::FillUnsorted(int64_t epoch, int64_t begin, absl::Span<int64_t> rows) const {
  const Stream stream = options_.weights != nullptr ? kDraw : kShuffle;
  const uint64_t seed = MixSeed(MixSeed(options_.seed, stream), static_cast<uint64_t>(epoch));
  const Permutation permutation(size_, seed);
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t row = begin + static_cast<int64_t>(i);
    if (options_.weights != nullptr) {
      row = options_.weights->Draw(MixSeed(seed, static_cast<uint64_t>(row)));
    } else if (options_.shuffle) {
      row = permutation.At(row);
    }
    rows[i] = RowOf(row);
  }
}

std::vector<int64_t> RowOrder::Window(int64_t epoch, int64_t window) const {
  const int64_t batch = options_.batch_size;
  const int64_t begin = window * kSortedBatches * batch;
  std::vector<int64_t> rows(static_cast<size_t>(std::min(kSortedBatches * batch, size_ - begin)));
  FillUnsorted(epoch, begin, absl::MakeSpan(rows));
  // A last batch with fewer rows keeps its place and its rows, which may be left out.
  const int64_t batches = static_cast<int64_t>(rows.size()) / batch;
  std::vector<std::pair<int64_t, int64_t>> sorted;  // length and row
  for (int64_t i = 0; i < batches * batch; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    sorted.emplace_back(options_.length(row), row);
  }
  std::ranges::stable_sort(sorted, {}, [](const auto& row) { return row.first; });
  const uint64_t seed = MixSeed(MixSeed(options_.seed, kBatches), static_cast<uint64_t>(epoch));
  const Permutation permutation(batches, MixSeed(seed, static_cast<uint64_t>(window)));
  for (int64_t i = 0; i < batches * batch; ++i) {
    const int64_t from = permutation.At(i / batch) * batch + i % batch;
    rows[static_cast<size_t>(i)] = sorted[static_cast<size_t>(from)].second;
  }
  return rows;
}

void RowOrder::Fill(int64_t epoch, int64_t begin, absl::Span<int64_t> rows) const {
  if (options_.length == nullptr) {
    FillUnsorted(epoch, begin, rows);
    return;
  }
  const int64_t window_rows = kSortedBatches * options_.batch_size;
  while (!rows.empty()) {
    const std::vector<int64_t> window = Window(epoch, begin / window_rows);
    const auto offset = static_cast<size_t>(begin % window_rows);
    const size_t count = std::min(rows.size(), window.size() - offset);
    std::copy_n(window.begin() + static_cast<std::ptrdiff_t>(offset), count, rows.begin());
    rows.remove_prefix(count);
    begin += static_cast<int64_t>(count);
  }
}

}  // namespace braid
