#include "server/batching/batch_policy.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(3600);

BatchDecision Decide(int64_t rows, int64_t free_workers, int64_t max_rows) {
  return DecideBatch({rows, kNow, free_workers}, kNow, {max_rows, absl::ZeroDuration()});
}

TEST(DecideBatchTest, AnEmptyQueueWaitsForEver) {
  EXPECT_EQ(Decide(0, 4, 64), BatchDecision(WaitUntil{absl::InfiniteFuture()}));
  EXPECT_EQ(DecideBatch({0, kNow, 1}, kNow, {64, absl::Seconds(1)}),
            BatchDecision(WaitUntil{absl::InfiniteFuture()}));
}

TEST(DecideBatchTest, WithoutADelayWhatIsThereGoes) {
  EXPECT_EQ(Decide(1, 1, 64), BatchDecision(TakeRows{1}));
  EXPECT_EQ(Decide(63, 1, 64), BatchDecision(TakeRows{63}));
}

TEST(DecideBatchTest, ABatchIsNoLargerThanTheModelsOwn) {
  EXPECT_EQ(Decide(1000, 1, 64), BatchDecision(TakeRows{64}));
  EXPECT_EQ(Decide(1000, 1, 1), BatchDecision(TakeRows{1}));
}

TEST(DecideBatchTest, EachFreeWorkerGetsAnEvenShare) {
  EXPECT_EQ(Decide(100, 4, 64), BatchDecision(TakeRows{25}));
  EXPECT_EQ(Decide(101, 4, 64), BatchDecision(TakeRows{26}));
  EXPECT_EQ(Decide(1000, 4, 64), BatchDecision(TakeRows{64}));
}

TEST(DecideBatchTest, AShareIsNotSmallerThanItsWorth) {
  EXPECT_EQ(Decide(20, 4, 64), BatchDecision(TakeRows{kMinChunkRows}));
  EXPECT_EQ(Decide(kMinChunkRows - 1, 4, 64), BatchDecision(TakeRows{kMinChunkRows - 1}));
  EXPECT_EQ(Decide(20, 4, 3), BatchDecision(TakeRows{3}));
}

TEST(DecideBatchTest, ABatchThatIsNotFullWaitsAsLongAsTheLimitsSay) {
  const BatchLimits limits{64, absl::Milliseconds(5)};
  const absl::Time due = kNow + absl::Milliseconds(5);
  EXPECT_EQ(DecideBatch({63, kNow, 1}, kNow, limits), BatchDecision(WaitUntil{due}));
  EXPECT_EQ(DecideBatch({63, kNow, 1}, due - absl::Nanoseconds(1), limits),
            BatchDecision(WaitUntil{due}));
  EXPECT_EQ(DecideBatch({63, kNow, 1}, due, limits), BatchDecision(TakeRows{63}));
}

TEST(DecideBatchTest, AFullBatchDoesNotWait) {
  const BatchLimits limits{64, absl::Hours(1)};
  EXPECT_EQ(DecideBatch({64, kNow, 1}, kNow, limits), BatchDecision(TakeRows{64}));
}

TEST(DecideBatchTest, ADelayForEverIsOne) {
  const BatchLimits limits{64, absl::InfiniteDuration()};
  EXPECT_EQ(DecideBatch({1, kNow, 1}, kNow, limits),
            BatchDecision(WaitUntil{absl::InfiniteFuture()}));
}

}  // namespace
}  // namespace braid
