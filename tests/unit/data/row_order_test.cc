#include "server/data/row_order.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/data/tables.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<int64_t> Rows(const RowOrder& order, int64_t epoch, int64_t begin, int64_t end) {
  std::vector<int64_t> rows(static_cast<size_t>(end - begin));
  order.Fill(epoch, begin, absl::MakeSpan(rows));
  return rows;
}

std::vector<int64_t> Epoch(const RowOrder& order, int64_t epoch) {
  return Rows(order, epoch, 0, order.size());
}

std::vector<int64_t> Sorted(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(PermutationTest, IsABijection) {
  for (const int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    const Permutation permutation(size, 7);
    std::vector<int64_t> values;
    for (int64_t i = 0; i < size; ++i) {
      values.push_back(permutation.At(i));
    }
    EXPECT_EQ(Sorted(values), Count(0, size));
  }
}

TEST(PermutationTest, TakesHugeSizes) {
  const int64_t size = (int64_t{1} << 62) + 1;
  const Permutation permutation(size, 7);
  std::set<int64_t> values;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t value = permutation.At(size - 1 - i);
    EXPECT_GE(value, 0);
    EXPECT_LT(value, size);
    values.insert(value);
  }
  EXPECT_EQ(values.size(), 100u);
}

TEST(PermutationTest, SpreadsNeighbours) {
  // Neighbours of a random permutation are size / 3 apart on average, with a deviation of about
  // size / sqrt(18 * size).
  const int64_t size = 10'000;
  const Permutation permutation(size, 3);
  double distance = 0;
  for (int64_t i = 1; i < size; ++i) {
    distance += static_cast<double>(std::abs(permutation.At(i) - permutation.At(i - 1)));
  }
  EXPECT_NEAR(distance / static_cast<double>(size * size), 1 / 3.0, 0.02);
}

TEST(RowOrderTest, ShufflesBySeedAndEpoch) {
  const RowOrder order({.rows = 100, .seed = 1});
  EXPECT_EQ(Sorted(Epoch(order, 0)), Count(0, 100));
  EXPECT_EQ(Epoch(order, 0), Epoch(RowOrder({.rows = 100, .seed = 1}), 0));
  EXPECT_NE(Epoch(order, 0), Epoch(order, 1));
  EXPECT_NE(Epoch(order, 0), Epoch(RowOrder({.rows = 100, .seed = 2}), 0));
}

// Jobs that were submitted before an update must continue with the same order.
TEST(RowOrderTest, NeverChanges) {
  // Computed by a separate implementation in Python.
  const RowOrder order({.rows = 10, .seed = 1});
  EXPECT_THAT(Epoch(order, 0), ElementsAre(1, 2, 8, 4, 3, 0, 9, 5, 6, 7));
  EXPECT_THAT(Epoch(order, 1), ElementsAre(3, 9, 4, 8, 6, 0, 7, 2, 1, 5));
}

TEST(RowOrderTest, KeepsTheOrderWithoutShuffling) {
  EXPECT_EQ(Epoch(RowOrder({.rows = 10, .shuffle = false}), 3), Count(0, 10));
}

TEST(RowOrderTest, AnswersForAnyPosition) {
  const RowOrder order({.rows = 1000, .seed = 5});
  const std::vector<int64_t> all = Epoch(order, 2);
  EXPECT_THAT(Rows(order, 2, 700, 710),
              ElementsAreArray(std::vector<int64_t>(all.begin() + 700, all.begin() + 710)));
}

TEST(RowSplitTest, SplitsIntoDisjointOrderedParts) {
  for (const double fraction : {0.001, 0.1, 0.25, 0.5, 0.75, 0.999}) {
    for (const int64_t rows : {1, 2, 3, 10, 1000, 1001}) {
      const RowSplit split(rows, fraction, 9);
      EXPECT_EQ(split.validation_rows(), std::llround(fraction * static_cast<double>(rows)));
      std::vector<int64_t> training;
      for (int64_t i = 0; i < split.training_rows(); ++i) {
        training.push_back(split.TrainingRow(i));
      }
      std::vector<int64_t> all;
      for (int64_t i = 0; i < split.validation_rows(); ++i) {
        all.push_back(split.ValidationRow(i));
      }
      EXPECT_EQ(Sorted(training), training);
      EXPECT_EQ(Sorted(all), all);
      all.insert(all.end(), training.begin(), training.end());
      EXPECT_EQ(Sorted(all), Count(0, rows)) << fraction << " of " << rows;
    }
  }
}

TEST(RowSplitTest, DependsOnTheSeed) {
  const RowSplit first(1000, 0.1, 1);
  const RowSplit second(1000, 0.1, 2);
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) {
    same += first.ValidationRow(i) == second.ValidationRow(i) ? 1 : 0;
  }
  EXPECT_LT(same, 50);
}

TEST(RowOrderTest, LeavesOutValidationRows) {
  const RowSplit split(100, 0.2, 4);
  const RowOrder order({.rows = 100, .seed = 4, .split = split});
  EXPECT_EQ(order.size(), 80);
  std::vector<int64_t> training;
  for (int64_t i = 0; i < 80; ++i) {
    training.push_back(split.TrainingRow(i));
  }
  EXPECT_EQ(Sorted(Epoch(order, 0)), training);
}

TEST(RowOrderTest, TakesOnlyValidationRows) {
  const RowSplit split(100, 0.2, 4);
  const RowOrder order(
      {.rows = 100, .seed = 4, .shuffle = false, .split = split, .validation = true});
  std::vector<int64_t> validation;
  for (int64_t i = 0; i < 20; ++i) {
    validation.push_back(split.ValidationRow(i));
  }
  EXPECT_EQ(Epoch(order, 0), validation);
  EXPECT_EQ(RowOrder({.rows = 100, .validation = true}).size(), 100);
}

// Length of a row: many rows have the same.
int64_t Length(int64_t row) { return row * 37 % 101; }

TEST(RowOrderTest, SortedBatchesHaveRowsOfSimilarLength) {
  constexpr int64_t kRows = 4321;
  constexpr int64_t kBatch = 16;
  const RowOrder order({.rows = kRows, .seed = 5, .length = Length, .batch_size = kBatch});
  const std::vector<int64_t> rows = Epoch(order, 3);
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(Sorted(rows), all);
  int64_t padding = 0;
  std::vector<int64_t> longest;
  for (int64_t begin = 0; begin + kBatch <= kRows; begin += kBatch) {
    int64_t most = 0;
    int64_t sum = 0;
    for (int64_t i = begin; i < begin + kBatch; ++i) {
      most = std::max(most, Length(rows[static_cast<size_t>(i)]));
      sum += Length(rows[static_cast<size_t>(i)]);
    }
    padding += most * kBatch - sum;
    longest.push_back(most);
  }
  // All lengths sum to 216,000. Random batches would have about as much padding.
  EXPECT_LT(padding, 8000);
  // The batches are not in the order of their lengths.
  EXPECT_FALSE(std::is_sorted(longest.begin(), longest.begin() + 50));
}

TEST(RowOrderTest, SortedOrderCanBeReadFromAnyPosition) {
  const RowOrder order({.rows = 1000, .seed = 5, .length = Length, .batch_size = 8});
  const std::vector<int64_t> rows = Epoch(order, 1);
  EXPECT_NE(rows, Epoch(order, 2));
  for (const int64_t begin : {0, 7, 390, 399, 400, 995}) {
    std::vector<int64_t> some(static_cast<size_t>(std::min<int64_t>(30, 1000 - begin)));
    order.Fill(1, begin, absl::MakeSpan(some));
    EXPECT_TRUE(std::equal(some.begin(), some.end(), rows.begin() + begin)) << begin;
  }
}

TEST(RowOrderTest, LastBatchWithFewerRowsIsNotSorted) {
  const RowOrder order({.rows = 27, .seed = 5, .length = Length, .batch_size = 8});
  const RowOrder unsorted({.rows = 27, .seed = 5});
  const std::vector<int64_t> rows = Epoch(order, 0);
  const std::vector<int64_t> shuffled = Epoch(unsorted, 0);
  EXPECT_TRUE(std::equal(rows.begin() + 24, rows.end(), shuffled.begin() + 24));
}

TEST(WeightedDrawTest, DrawsInProportionToTheWeights) {
  BRAID_ASSERT_OK_AND_ASSIGN(WeightedDraw weights, WeightedDraw::Create({0, 1, 0, 3, 0}));
  const RowOrder order(
      {.rows = 5, .seed = 1, .weights = std::make_shared<WeightedDraw>(std::move(weights))});
  int third = 0;
  for (int64_t epoch = 0; epoch < 400; ++epoch) {
    for (const int64_t row : Epoch(order, epoch)) {
      EXPECT_TRUE(row == 1 || row == 3) << row;
      third += row == 3 ? 1 : 0;
    }
  }
  // 2,000 draws: a deviation of 19.4.
  EXPECT_NEAR(third, 1500, 100);
}

TEST(WeightedDrawTest, NeverDrawsAWeightOfZeroAtTheEnds) {
  BRAID_ASSERT_OK_AND_ASSIGN(const WeightedDraw weights, WeightedDraw::Create({0, 0.1, 0}));
  EXPECT_EQ(weights.Draw(0), 1);
  EXPECT_EQ(weights.Draw(~uint64_t{0}), 1);
}

TEST(WeightedDrawTest, RejectsInvalidWeights) {
  EXPECT_THAT(WeightedDraw::Create({1, -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 1: weight -1")));
  EXPECT_THAT(WeightedDraw::Create({std::nan("")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 0")));
  EXPECT_THAT(WeightedDraw::Create({0, 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sum to 0")));
}

}  // namespace
}  // namespace braid
