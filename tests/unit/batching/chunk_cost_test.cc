#include "server/batching/chunk_cost.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/batching/batch_policy.h"

namespace braid {
namespace {

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();

// Records batches of 1 to 64 rows that cost `fixed` plus `row` per row.
ChunkCost Learnt(absl::Duration fixed, absl::Duration row) {
  ChunkCost cost;
  for (int64_t batch = 0; batch < 200; ++batch) {
    const int64_t rows = 1 + (batch * 37) % 64;
    cost.Record(rows, fixed + rows * row);
  }
  return cost;
}

TEST(ChunkCostTest, HasDefaultsBeforeAnyBatch) {
  EXPECT_EQ(ChunkCost().min_chunk_rows(), kDefaultMinChunkRows);
}

TEST(ChunkCostTest, RowsOfAChunkCostThreeTimesItsFixedCost) {
  // Waking a worker costs 50 us.
  EXPECT_NEAR(Learnt(absl::Microseconds(80), absl::Microseconds(10)).min_chunk_rows(), 39, 1);
  EXPECT_NEAR(Learnt(absl::Microseconds(1), absl::Nanoseconds(100)).min_chunk_rows(), 1530, 5);
  EXPECT_NEAR(Learnt(absl::Milliseconds(4), absl::Microseconds(20)).min_chunk_rows(), 608, 2);
}

TEST(ChunkCostTest, AnExpensiveRowIsAChunk) {
  EXPECT_EQ(Learnt(absl::ZeroDuration(), absl::Milliseconds(20)).min_chunk_rows(), 1);
}

TEST(ChunkCostTest, BatchesOfOneSizeDoNotDetermineTheFit) {
  ChunkCost cost;
  for (int batch = 0; batch < 200; ++batch) {
    cost.Record(32, absl::Milliseconds(batch % 3));
  }
  EXPECT_EQ(cost.min_chunk_rows(), kDefaultMinChunkRows);
}

TEST(ChunkCostTest, FreeRowsAreNotSplit) {
  EXPECT_GE(Learnt(absl::Milliseconds(1), absl::ZeroDuration()).min_chunk_rows(), 4096);
  ChunkCost falling;  // a package that runs fewer than 16 rows as 16, less well than 64
  for (int batch = 0; batch < 200; ++batch) {
    const bool few = batch % 2 == 0;
    falling.Record(few ? 8 : 64, absl::Microseconds(few ? 400 : 300));
  }
  EXPECT_GE(falling.min_chunk_rows(), 4096);
}

TEST(ChunkCostTest, SimilarSizesDoNotProveThatRowsAreFree) {
  ChunkCost cost;
  for (int batch = 0; batch < 200; ++batch) {
    const bool few = batch % 2 == 0;
    cost.Record(few ? 24 : 32, absl::Microseconds(few ? 310 : 300));
  }
  EXPECT_EQ(cost.min_chunk_rows(), kDefaultMinChunkRows);
}

TEST(ChunkCostTest, PredictsFromTheFit) {
  EXPECT_EQ(ChunkCost().Predict(8), absl::InfiniteDuration());
  const ChunkCost cost = Learnt(absl::Microseconds(80), absl::Microseconds(10));
  EXPECT_NEAR(absl::ToDoubleMicroseconds(cost.Predict(1)), 90, 1);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(cost.Predict(100)), 1080, 5);
}

TEST(ChunkCostTest, ForgetsOldBatches) {
  ChunkCost cost = Learnt(absl::ZeroDuration(), absl::Milliseconds(20));
  for (int64_t batch = 0; batch < 2000; ++batch) {
    const int64_t rows = 1 + (batch * 37) % 64;
    cost.Record(rows, rows * absl::Microseconds(10));
  }
  EXPECT_NEAR(cost.min_chunk_rows(), 15, 1);
}

TEST(ChunkCostTest, BatchesOfOneSizeKeepTheFit) {
  ChunkCost cost = Learnt(absl::Microseconds(80), absl::Microseconds(10));
  for (int batch = 0; batch < 2000; ++batch) {
    cost.Record(32, absl::Microseconds(400));
  }
  EXPECT_NEAR(cost.min_chunk_rows(), 39, 1);
}

TEST(ChunkCostTest, RequestsSamplesUntilSmallBatchesHaveRun) {
  ChunkCost cost;
  std::vector<int> tries;
  for (int batch = 0; batch < 1000; ++batch) {
    const int64_t tried = cost.sample_rows();
    if (tried > 0) {
      tries.push_back(batch);
    }
    const int64_t rows = tried > 0 ? tried : 1000;
    cost.Begin(rows);
    cost.Record(rows, rows * absl::Microseconds(10));
  }
  EXPECT_EQ(tries, (std::vector<int>{8, 41, 74, 107}));
  ChunkCost small;
  for (int batch = 0; batch < 100; ++batch) {
    small.Begin(batch < 4 ? 1 : 1000);
    small.Record(batch < 4 ? 1 : 1000, absl::Milliseconds(1));
    EXPECT_EQ(small.sample_rows(), 0);
  }
}

TEST(ChunkCostTest, TheFixedCostIsAtMostASmallBatch) {
  ChunkCost cost;
  for (int batch = 0; batch < 400; ++batch) {
    const bool whole = batch % 2 == 0;
    cost.Record(batch < 4 ? 8
                : whole   ? 4096
                          : 2048,
                batch < 4 ? absl::Microseconds(150)
                          : (whole ? 4096 : 2048) * absl::Microseconds(whole ? 15 : 20));
  }
  // The fit alone would say 20 ms.
  EXPECT_LT(cost.min_chunk_rows(), 100);
}

// Simulates 1,000 requests of 4,096 rows, one at a time, on two workers. Chunks that run in
// parallel take a third longer, as on two cores that share memory, so large batches alone suggest a
// high fixed cost. Returns how many of the last 100 requests were shared.
int SharedOfLast(ChunkCost* cost) {
  constexpr int kRequests = 1000;
  int shared = 0;
  for (int request = 0; request < kRequests; ++request) {
    int64_t left = 4096;
    std::vector<int64_t> chunks;
    while (left > 0 && chunks.size() < 2) {
      const IdleWorkers idle{2 - static_cast<int64_t>(chunks.size()), cost->min_chunk_rows(),
                             kEverything, cost->sample_rows()};
      const BatchDecision decision = DecideBatch({left, absl::UnixEpoch(), left, idle},
                                                 absl::UnixEpoch(), {4096, absl::ZeroDuration()});
      chunks.push_back(std::get<TakeRows>(decision).rows);
      cost->Begin(chunks.back());
      left -= chunks.back();
    }
    EXPECT_EQ(left, 0);
    const bool halves = chunks.size() == 2 && chunks[0] == chunks[1];
    shared += request >= kRequests - 100 && halves ? 1 : 0;
    for (const int64_t rows : chunks) {
      cost->Record(rows, absl::Microseconds(30) + rows * absl::Microseconds(halves ? 20 : 15));
    }
  }
  return shared;
}

TEST(ChunkCostTest, LargeBatchesAreSharedFromAnyStart) {
  ChunkCost cost;
  EXPECT_EQ(SharedOfLast(&cost), 100);

  ChunkCost unlucky;  // at first workers were busy at times, and requests stayed whole
  for (int batch = 0; batch < 12; ++batch) {
    const bool whole = batch % 4 == 0;
    unlucky.Record(whole ? 4096 : 2048,
                   whole ? 4096 * absl::Microseconds(15) : 2048 * absl::Microseconds(20));
  }
  ASSERT_GT(unlucky.min_chunk_rows(), 2048);
  EXPECT_EQ(SharedOfLast(&unlucky), 100);
}

// The result of most calls of NextMergeRows().
int64_t MergeRows(ChunkCost* cost) {
  std::map<int64_t, int> answers;
  for (int i = 0; i < 64; ++i) {
    ++answers[cost->NextMergeRows()];
  }
  EXPECT_GT(answers[1], 0);
  EXPECT_GT(answers[kEverything], 0);
  return std::max_element(answers.begin(), answers.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

TEST(MergeRowsTest, MergesEverythingBeforeAnyBatch) {
  ChunkCost cost;
  EXPECT_EQ(MergeRows(&cost), kEverything);
}

TEST(MergeRowsTest, StopsMergingAtTheBestCostPerRow) {
  ChunkCost cost = Learnt(absl::Microseconds(10), absl::Microseconds(20));
  EXPECT_EQ(MergeRows(&cost), 8);  // 8 to 15 rows: 21 us a row; the best is 20.2
  cost = Learnt(absl::Milliseconds(10), absl::Microseconds(1));
  EXPECT_EQ(MergeRows(&cost), 32);
  cost = Learnt(absl::ZeroDuration(), absl::Microseconds(20));
  EXPECT_EQ(MergeRows(&cost), 1);
}

TEST(MergeRowsTest, RareSizesDoNotCount) {
  ChunkCost cost = Learnt(absl::Milliseconds(10), absl::Microseconds(1));
  for (int i = 0; i < 3; ++i) {
    cost.Record(4096, absl::Microseconds(1));
  }
  EXPECT_EQ(MergeRows(&cost), 32);
}

TEST(MergeRowsTest, VeryLargeBatchesShareTheLastSizeClass) {
  ChunkCost cost;
  for (int i = 0; i < 8; ++i) {
    cost.Record(int64_t{1} << 40, absl::Seconds(1));
  }
  EXPECT_EQ(MergeRows(&cost), int64_t{1} << 31);
}

using Cost = std::function<absl::Duration(int64_t rows)>;

// Runs 200 batches of the sizes that BestRows() returns. Returns the last one.
int64_t Settle(ChunkCost* cost, const Cost& time, int64_t max_rows,
               absl::Duration max_time = absl::InfiniteDuration()) {
  for (int batch = 0; batch < 200; ++batch) {
    const int64_t rows = cost->BestRows(max_rows, max_time);
    EXPECT_LE(rows, max_rows);
    EXPECT_TRUE(rows == 1 || time(rows) <= max_time) << rows;
    cost->Record(rows, time(rows));
  }
  return cost->BestRows(max_rows, max_time);
}

Cost Linear(absl::Duration fixed, absl::Duration row) {
  return [=](int64_t rows) { return fixed + rows * row; };
}

TEST(BestRowsTest, StopsGrowingWhereRowsNoLongerGetCheaper) {
  ChunkCost cost;
  // 1,024 rows: 11.0 us a row; 2,048 rows: 10.5; 4,096: 10.2; 8,192: 10.1.
  EXPECT_EQ(Settle(&cost, Linear(absl::Milliseconds(1), absl::Microseconds(10)), 1 << 20), 4096);
  ChunkCost expensive;
  EXPECT_EQ(Settle(&expensive, Linear(absl::ZeroDuration(), absl::Milliseconds(20)), 256), 1);
}

TEST(BestRowsTest, PassesASizeThatIsWorse) {
  const Cost time = [](int64_t rows) {
    return absl::Microseconds(100) + (rows == 4 ? 40 : 0) * absl::Microseconds(10);
  };
  ChunkCost cost;
  EXPECT_EQ(Settle(&cost, time, 64), 64);
}

TEST(BestRowsTest, DelaysByOtherThreadsDoNotCount) {
  int batch = 0;
  const Cost time = [&](int64_t) {
    return absl::Microseconds(100) +
           (++batch % 3 == 0 ? absl::Milliseconds(50) : absl::ZeroDuration());
  };
  ChunkCost cost;
  EXPECT_EQ(Settle(&cost, time, 64), 64);
}

TEST(BestRowsTest, LargerBatchesThatAreSlowerAreNotTaken) {
  const Cost time = [](int64_t rows) {  // such as beyond a cache
    return rows * absl::Microseconds(rows > 32 ? 20 : 10) + absl::Microseconds(100);
  };
  ChunkCost cost;
  EXPECT_EQ(Settle(&cost, time, 4096), 32);
}

TEST(BestRowsTest, LimitsRowsAndTime) {
  const Cost time = Linear(absl::Milliseconds(2), absl::Microseconds(100));
  ChunkCost cost;
  EXPECT_EQ(Settle(&cost, time, 1000, absl::Milliseconds(8)), 32);
  // The limit ends: the larger sizes are measured.
  EXPECT_EQ(Settle(&cost, time, 1000), 1000);
  EXPECT_EQ(Settle(&cost, time, 1000, absl::Milliseconds(8)), 32);
  ChunkCost odd;
  EXPECT_EQ(Settle(&odd, time, 100), 100);
  ChunkCost slow;
  EXPECT_EQ(
      Settle(&slow, Linear(absl::Seconds(1), absl::ZeroDuration()), 64, absl::Milliseconds(8)), 1);
}

}  // namespace
}  // namespace braid
