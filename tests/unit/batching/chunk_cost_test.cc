#include "server/batching/chunk_cost.h"

#include <algorithm>
#include <limits>
#include <map>

#include "gtest/gtest.h"

namespace braid {
namespace {

// Batches of 1 to 64 rows that cost `fixed` and `row` a row.
ChunkCost Learnt(absl::Duration fixed, absl::Duration row) {
  ChunkCost cost;
  for (int64_t batch = 0; batch < 200; ++batch) {
    const int64_t rows = 1 + (batch * 37) % 64;
    cost.Record(rows, fixed + rows * row);
  }
  return cost;
}

TEST(ChunkCostTest, KnowsNothingAtFirst) {
  EXPECT_EQ(ChunkCost().min_chunk_rows(), kDefaultMinChunkRows);
}

TEST(ChunkCostTest, AChunksRowsTakeThreeTimesItsHandOverAndFixedCost) {
  // A hand-over takes 50 us.
  EXPECT_NEAR(Learnt(absl::Microseconds(80), absl::Microseconds(10)).min_chunk_rows(), 39, 1);
  EXPECT_NEAR(Learnt(absl::Microseconds(1), absl::Nanoseconds(100)).min_chunk_rows(), 1530, 5);
  EXPECT_NEAR(Learnt(absl::Milliseconds(4), absl::Microseconds(20)).min_chunk_rows(), 608, 2);
}

TEST(ChunkCostTest, ARowThatIsDearIsAChunk) {
  EXPECT_EQ(Learnt(absl::ZeroDuration(), absl::Milliseconds(20)).min_chunk_rows(), 1);
}

TEST(ChunkCostTest, BatchesOfOneSizeTeachNothing) {
  ChunkCost cost;
  for (int batch = 0; batch < 200; ++batch) {
    cost.Record(32, absl::Milliseconds(batch % 3));
  }
  EXPECT_EQ(cost.min_chunk_rows(), kDefaultMinChunkRows);
}

TEST(ChunkCostTest, RowsThatCostNothingTeachNothing) {
  EXPECT_EQ(Learnt(absl::Milliseconds(1), absl::ZeroDuration()).min_chunk_rows(),
            kDefaultMinChunkRows);
}

TEST(ChunkCostTest, PredictsWhatItHasLearnt) {
  EXPECT_EQ(ChunkCost().Predict(8), absl::InfiniteDuration());
  const ChunkCost cost = Learnt(absl::Microseconds(80), absl::Microseconds(10));
  EXPECT_NEAR(absl::ToDoubleMicroseconds(cost.Predict(1)), 90, 1);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(cost.Predict(100)), 1080, 5);
}

TEST(ChunkCostTest, ForgetsWhatIsLongAgo) {
  ChunkCost cost = Learnt(absl::ZeroDuration(), absl::Milliseconds(20));
  for (int64_t batch = 0; batch < 2000; ++batch) {
    const int64_t rows = 1 + (batch * 37) % 64;
    cost.Record(rows, rows * absl::Microseconds(10));
  }
  EXPECT_NEAR(cost.min_chunk_rows(), 15, 1);
}

TEST(ChunkCostTest, BatchesOfOneSizeDoNotMakeItForget) {
  ChunkCost cost = Learnt(absl::Microseconds(80), absl::Microseconds(10));
  for (int batch = 0; batch < 2000; ++batch) {
    cost.Record(32, absl::Microseconds(400));
  }
  EXPECT_NEAR(cost.min_chunk_rows(), 39, 1);
}

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();

// What merge_rows() says most of the time.
int64_t MergeRows(ChunkCost* cost) {
  std::map<int64_t, int> answers;
  for (int i = 0; i < 64; ++i) {
    ++answers[cost->merge_rows()];
  }
  EXPECT_GT(answers[1], 0);
  EXPECT_GT(answers[kEverything], 0);
  return std::max_element(answers.begin(), answers.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

TEST(MergeRowsTest, EverythingIsMergedUntilSomethingIsKnown) {
  ChunkCost cost;
  EXPECT_EQ(MergeRows(&cost), kEverything);
}

TEST(MergeRowsTest, ABatchIsLargeEnoughWhereARowCostsLeast) {
  ChunkCost cost = Learnt(absl::Microseconds(10), absl::Microseconds(20));
  EXPECT_EQ(MergeRows(&cost), 8);  // 8 to 15 rows: 21 us a row; the best is 20.2
  cost = Learnt(absl::Milliseconds(10), absl::Microseconds(1));
  EXPECT_EQ(MergeRows(&cost), 32);
  cost = Learnt(absl::ZeroDuration(), absl::Microseconds(20));
  EXPECT_EQ(MergeRows(&cost), 1);
}

TEST(MergeRowsTest, SizesThatWereHardlySeenDoNotCount) {
  ChunkCost cost = Learnt(absl::Milliseconds(10), absl::Microseconds(1));
  for (int i = 0; i < 3; ++i) {
    cost.Record(4096, absl::Microseconds(1));
  }
  EXPECT_EQ(MergeRows(&cost), 32);
}

TEST(MergeRowsTest, RowsBeyondAllSizesAreOfTheLargest) {
  ChunkCost cost;
  for (int i = 0; i < 8; ++i) {
    cost.Record(int64_t{1} << 40, absl::Seconds(1));
  }
  EXPECT_EQ(MergeRows(&cost), int64_t{1} << 31);
}

}  // namespace
}  // namespace braid
