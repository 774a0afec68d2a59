#include "server/batching/chunk_cost.h"

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

TEST(ChunkCostTest, AChunkIsWorthItsHandOver) {
  // 50 us of rows.
  EXPECT_NEAR(Learnt(absl::Microseconds(80), absl::Microseconds(10)).min_chunk_rows(), 5, 1);
  EXPECT_NEAR(Learnt(absl::Microseconds(1), absl::Nanoseconds(100)).min_chunk_rows(), 500, 5);
}

TEST(ChunkCostTest, AChunkIsWorthAQuarterOfTheFixedCost) {
  EXPECT_NEAR(Learnt(absl::Milliseconds(4), absl::Microseconds(20)).min_chunk_rows(), 50, 1);
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

TEST(ChunkCostTest, ForgetsWhatIsLongAgo) {
  ChunkCost cost = Learnt(absl::ZeroDuration(), absl::Milliseconds(20));
  for (int64_t batch = 0; batch < 2000; ++batch) {
    const int64_t rows = 1 + (batch * 37) % 64;
    cost.Record(rows, rows * absl::Microseconds(10));
  }
  EXPECT_NEAR(cost.min_chunk_rows(), 5, 1);
}

}  // namespace
}  // namespace braid
