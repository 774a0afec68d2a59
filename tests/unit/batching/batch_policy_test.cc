#include "server/batching/batch_policy.h"

#include <limits>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(3600);

constexpr int64_t kMinChunk = 8;

// A queue with one request of `rows` rows.
QueueView View(int64_t rows, const IdleWorkers& idle = {}) { return {rows, kNow, rows, idle}; }

BatchDecision Decide(int64_t rows, int64_t free_workers, int64_t max_rows) {
  return DecideBatch(View(rows, {free_workers, kMinChunk}), kNow, {max_rows, absl::ZeroDuration()});
}

TEST(DecideBatchTest, EmptyQueueWaitsForever) {
  EXPECT_EQ(Decide(0, 4, 64), BatchDecision(WaitUntil{absl::InfiniteFuture()}));
  EXPECT_EQ(DecideBatch(View(0), kNow, {64, absl::Seconds(1)}),
            BatchDecision(WaitUntil{absl::InfiniteFuture()}));
}

TEST(DecideBatchTest, TakesWaitingRowsAtOnceWithoutDelay) {
  EXPECT_EQ(Decide(1, 1, 64), BatchDecision(TakeRows{1}));
  EXPECT_EQ(Decide(63, 1, 64), BatchDecision(TakeRows{63}));
}

TEST(DecideBatchTest, TakesAtMostMaxBatchSize) {
  EXPECT_EQ(Decide(1000, 1, 64), BatchDecision(TakeRows{64}));
  EXPECT_EQ(Decide(1000, 1, 1), BatchDecision(TakeRows{1}));
}

TEST(DecideBatchTest, SharesRowsEvenlyAmongIdleWorkers) {
  EXPECT_EQ(Decide(100, 4, 64), BatchDecision(TakeRows{25}));
  EXPECT_EQ(Decide(101, 4, 64), BatchDecision(TakeRows{26}));
  EXPECT_EQ(Decide(1000, 4, 64), BatchDecision(TakeRows{64}));
}

TEST(DecideBatchTest, SharesHaveAtLeastMinChunkRows) {
  EXPECT_EQ(Decide(20, 4, 64), BatchDecision(TakeRows{10}));  // not 8, 8 and 4
  EXPECT_EQ(Decide(2 * kMinChunk - 1, 4, 64), BatchDecision(TakeRows{2 * kMinChunk - 1}));
  EXPECT_EQ(Decide(kMinChunk - 1, 4, 64), BatchDecision(TakeRows{kMinChunk - 1}));
  EXPECT_EQ(Decide(20, 4, 3), BatchDecision(TakeRows{3}));
}

TEST(DecideBatchTest, TakesASampleIfManyMoreRowsWait) {
  constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
  const BatchLimits limits{64, absl::ZeroDuration()};
  const IdleWorkers two{2, kMinChunk, kEverything, 8};
  EXPECT_EQ(DecideBatch(View(64, two), kNow, limits), BatchDecision(TakeRows{8}));
  EXPECT_EQ(DecideBatch(View(63, two), kNow, limits), BatchDecision(TakeRows{32}));
  const IdleWorkers one{1, kMinChunk, kEverything, 8};
  EXPECT_EQ(DecideBatch(View(64, one), kNow, limits), BatchDecision(TakeRows{64}));
  // Configured sizes take precedence over a sample.
  const absl::Duration none = absl::ZeroDuration();
  EXPECT_EQ(DecideBatch(View(64, two), kNow, {64, none, {16}}), BatchDecision(TakeRows{16}));
  EXPECT_EQ(DecideBatch(View(64, two), kNow, {64, none, {}, 32}), BatchDecision(TakeRows{32}));
  EXPECT_EQ(DecideBatch(View(64, two), kNow, {64, absl::Seconds(1)}), BatchDecision(TakeRows{32}));
}

TEST(DecideBatchTest, PartialBatchWaitsForMaxDelay) {
  const BatchLimits limits{64, absl::Milliseconds(5)};
  const absl::Time due = kNow + absl::Milliseconds(5);
  EXPECT_EQ(DecideBatch(View(63), kNow, limits), BatchDecision(WaitUntil{due}));
  EXPECT_EQ(DecideBatch(View(63), due - absl::Nanoseconds(1), limits),
            BatchDecision(WaitUntil{due}));
  EXPECT_EQ(DecideBatch(View(63), due, limits), BatchDecision(TakeRows{63}));
}

TEST(DecideBatchTest, FullBatchDoesNotWait) {
  const BatchLimits limits{64, absl::Hours(1)};
  EXPECT_EQ(DecideBatch(View(64), kNow, limits), BatchDecision(TakeRows{64}));
}

TEST(DecideBatchTest, InfiniteDelayWaitsForever) {
  const BatchLimits limits{64, absl::InfiniteDuration()};
  EXPECT_EQ(DecideBatch(View(1), kNow, limits), BatchDecision(WaitUntil{absl::InfiniteFuture()}));
}

TEST(DecideBatchTest, PreferredSizeDoesNotWait) {
  const BatchLimits limits{64, absl::Milliseconds(5), {4, 16}};
  const absl::Time due = kNow + absl::Milliseconds(5);
  EXPECT_EQ(DecideBatch(View(3), kNow, limits), BatchDecision(WaitUntil{due}));
  EXPECT_EQ(DecideBatch(View(3), due, limits), BatchDecision(TakeRows{3}));
  EXPECT_EQ(DecideBatch(View(4), kNow, limits), BatchDecision(TakeRows{4}));
  EXPECT_EQ(DecideBatch(View(15), kNow, limits), BatchDecision(TakeRows{15}));
  EXPECT_EQ(DecideBatch(View(16), kNow, limits), BatchDecision(TakeRows{16}));
  EXPECT_EQ(DecideBatch(View(100), kNow, limits), BatchDecision(TakeRows{16}));
}

TEST(DecideBatchTest, SharesHavePreferredSizes) {
  const BatchLimits limits{64, absl::ZeroDuration(), {4, 16}};
  EXPECT_EQ(DecideBatch(View(30, {2, 1}), kNow, limits), BatchDecision(TakeRows{4}));
  EXPECT_EQ(DecideBatch(View(40, {2, 1}), kNow, limits), BatchDecision(TakeRows{16}));
  EXPECT_EQ(DecideBatch(View(6, {3, 1}), kNow, limits), BatchDecision(TakeRows{4}));
}

TEST(DecideBatchTest, CutsLargeRequestsIntoChunks) {
  const BatchLimits limits{64, absl::ZeroDuration(), {}, 10};
  EXPECT_EQ(DecideBatch(View(100), kNow, limits), BatchDecision(TakeRows{10}));
  EXPECT_EQ(DecideBatch(View(10), kNow, limits), BatchDecision(TakeRows{10}));
  // Small requests are still merged.
  EXPECT_EQ(DecideBatch({100, kNow, 1, {}}, kNow, limits), BatchDecision(TakeRows{64}));
}

TEST(WorkersToWakeTest, WakesOneWorkerPerChunk) {
  EXPECT_EQ(WorkersToWake(24, kMinChunk, /*short_batch_runs=*/false), 3);
  EXPECT_EQ(WorkersToWake(24, kMinChunk, true), 3);
  EXPECT_EQ(WorkersToWake(3 * kMinChunk - 1, kMinChunk, false), 2);
}

TEST(WorkersToWakeTest, FewRowsWakeNobodyOnlyDuringAShortBatch) {
  EXPECT_EQ(WorkersToWake(1, kMinChunk, false), 1);
  EXPECT_EQ(WorkersToWake(kMinChunk - 1, kMinChunk, true), 0);
}

TEST(WorkersToWakeTest, NoRowsWakeNobody) {
  EXPECT_EQ(WorkersToWake(0, kMinChunk, false), 0);
  EXPECT_EQ(WorkersToWake(0, kMinChunk, true), 0);
}

}  // namespace
}  // namespace braid
