#include "server/batching/model_statistics.h"

#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr absl::Time kStart = absl::FromUnixSeconds(3600);

TEST(ModelStatisticsTest, StartsAtZero) {
  const ModelStatistics::Counts counts = ModelStatistics().counts();
  EXPECT_EQ(counts.last_inference, absl::InfinitePast());
  EXPECT_EQ(counts.rows, 0);
  EXPECT_EQ(counts.batches, 0);
  EXPECT_TRUE(counts.by_rows.empty());
}

TEST(ModelStatisticsTest, CountsBatchesByRows) {
  ModelStatistics statistics;
  const BatchDurations durations{absl::Milliseconds(1), absl::Milliseconds(5),
                                 absl::Milliseconds(2)};
  statistics.RecordBatch(12, kStart + absl::Seconds(1), durations);
  statistics.RecordBatch(12, kStart, durations);
  statistics.RecordBatch(4, kStart, durations);
  const ModelStatistics::Counts counts = statistics.counts();
  EXPECT_EQ(counts.last_inference, kStart + absl::Seconds(1));
  EXPECT_EQ(counts.batches, 3);
  EXPECT_EQ(counts.rows, 0);  // whose requests may fail yet
  ASSERT_EQ(counts.by_rows.size(), 2);
  EXPECT_EQ(counts.by_rows.at(12).forward.count, 2);
  EXPECT_EQ(counts.by_rows.at(12).forward.total, absl::Milliseconds(10));
  EXPECT_EQ(counts.by_rows.at(4).copy_in.total, absl::Milliseconds(1));
}

TEST(ModelStatisticsTest, CountsARequestOnceForManyBatches) {
  ModelStatistics statistics;
  BatchDurations durations{absl::Milliseconds(1), absl::Milliseconds(5), absl::Milliseconds(2)};
  durations += durations;
  statistics.RecordSuccess(20, absl::Milliseconds(9), absl::Milliseconds(3), durations);
  statistics.RecordSuccess(1, absl::Milliseconds(1), absl::Milliseconds(1), {});
  statistics.RecordFailure(absl::Milliseconds(7));
  const ModelStatistics::Counts counts = statistics.counts();
  EXPECT_EQ(counts.rows, 21);
  EXPECT_EQ(counts.success.count, 2);
  EXPECT_EQ(counts.success.total, absl::Milliseconds(10));
  EXPECT_EQ(counts.queue.count, 2);
  EXPECT_EQ(counts.queue.total, absl::Milliseconds(4));
  EXPECT_EQ(counts.request.copy_in.count, 2);
  EXPECT_EQ(counts.request.forward.total, absl::Milliseconds(10));
  EXPECT_EQ(counts.request.copy_out.total, absl::Milliseconds(4));
  EXPECT_EQ(counts.failure.count, 1);
  EXPECT_EQ(counts.failure.total, absl::Milliseconds(7));
}

}  // namespace
}  // namespace braid
