#include "server/batching/batcher.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using Schedule = InferenceRequest::Schedule;

constexpr absl::Time kNow = absl::FromUnixSeconds(3600);

// Identifies requests by their numbers, in the order of arrival.
class BatcherTest : public ::testing::Test {
 protected:
  Batcher& batcher() {
    if (!batcher_) {
      batcher_.emplace(config_);
    }
    return *batcher_;
  }
  absl::Status Add(int64_t rows, Schedule schedule = {}, int64_t columns = 1) {
    schedule.arrival = schedule.arrival == absl::Time() ? kNow : schedule.arrival;
    requests_.push_back(std::make_shared<InferenceRequest>(
        std::vector<HostTensor>{{"x", DataType::kFp32, {rows, columns}, nullptr, 0, nullptr}}, rows,
        schedule, [](const absl::StatusOr<InferenceResult>&) {}));
    return batcher().Add(requests_.back()).status();
  }
  size_t NumberOf(const std::shared_ptr<InferenceRequest>& request) const {
    return static_cast<size_t>(std::find(requests_.begin(), requests_.end(), request) -
                               requests_.begin());
  }
  // Returns the requests and rows of the next batch; empty if there is none.
  std::vector<std::pair<size_t, int64_t>> Take(absl::Time now = kNow, IdleWorkers idle = {}) {
    expired_.clear();
    std::vector<std::pair<size_t, int64_t>> rows_of;
    Batcher::Next next = batcher().Take(now, idle);
    if (const auto* batch = std::get_if<Batcher::Batch>(&next)) {
      for (const RequestRows& rows : batch->rows) {
        rows_of.emplace_back(NumberOf(rows.request), rows.count);
      }
      for (const auto& request : batch->expired) {
        expired_.push_back(NumberOf(request));
      }
    } else {
      until_ = std::get<absl::Time>(next);
    }
    return rows_of;
  }

  ModelConfig config_ = MakeConfig(4, {}, {});
  std::optional<Batcher> batcher_;
  std::vector<std::shared_ptr<InferenceRequest>> requests_;
  std::vector<size_t> expired_;
  absl::Time until_;
};

TEST_F(BatcherTest, RowsOfAFullBatchDoNotWait) {
  config_.max_batch_size = 8;
  config_.max_queue_delay = absl::Seconds(1);
  for (int i = 0; i < 8; ++i) {
    ASSERT_THAT(Add(1), IsOk());
  }
  const IdleWorkers two{2, 1};
  EXPECT_THAT(Take(kNow, two), SizeIs(4));  // a share for each
  EXPECT_THAT(Take(kNow, two), SizeIs(2));  // the first has not begun yet
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(kNow, {1, 1}), SizeIs(3));
  // A later request that is alone waits.
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(kNow, two), IsEmpty());
  EXPECT_EQ(until_, kNow + absl::Seconds(1));
}

TEST_F(BatcherTest, DoesNotWaitForRemovedRows) {
  config_.max_batch_size = 4;
  config_.max_queue_delay = absl::Seconds(1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(Add(1), IsOk());
  }
  EXPECT_THAT(Take(kNow, {2, 1}), SizeIs(2));
  batcher().Remove(*requests_[2]);
  batcher().Remove(*requests_[3]);
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(kNow, {2, 1}), IsEmpty());
}

TEST_F(BatcherTest, MergesSmallRequestsUpToMaxBatchSize) {
  ASSERT_THAT(Add(1), IsOk());
  ASSERT_THAT(Add(2), IsOk());
  ASSERT_THAT(Add(3), IsOk());
  EXPECT_EQ(batcher().rows(), 6);
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 1), Pair(1, 2)));
  EXPECT_THAT(Take(), ElementsAre(Pair(2, 3)));
  EXPECT_EQ(batcher().rows(), 0);
  EXPECT_THAT(Take(), IsEmpty());
  EXPECT_EQ(until_, absl::InfiniteFuture());
}

TEST_F(BatcherTest, DoesNotCutARequestToFillTheLastRows) {
  config_.max_batch_size = 8;
  for (const int64_t rows : {5, 5, 2, 7}) {
    ASSERT_THAT(Add(rows), IsOk());
  }
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 5)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 5), Pair(2, 2)));
  EXPECT_THAT(Take(), ElementsAre(Pair(3, 7)));
}

TEST_F(BatcherTest, CutsARequestIfTheBatchWouldBeHalfEmpty) {
  config_.max_batch_size = 8;
  ASSERT_THAT(Add(3), IsOk());
  ASSERT_THAT(Add(7), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 3), Pair(1, 5)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 2)));
}

TEST_F(BatcherTest, DoesNotCutARequestToFillTheLastRowsWithDelay) {
  config_.max_batch_size = 8;
  config_.max_queue_delay = absl::Seconds(1);
  for (const int64_t rows : {5, 5, 2, 7}) {
    ASSERT_THAT(Add(rows), IsOk());
  }
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 5)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 5), Pair(2, 2)));
}

TEST_F(BatcherTest, DoesNotCutARequestToReachAPreferredSize) {
  config_.max_batch_size = 8;
  config_.preferred_batch_sizes = {4};
  ASSERT_THAT(Add(3), IsOk());
  ASSERT_THAT(Add(6), IsOk());
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 6)));
  EXPECT_THAT(Take(), ElementsAre(Pair(2, 1)));
}

TEST_F(BatcherTest, ALargeRequestDelaysASmallOneByOneChunk) {
  ASSERT_THAT(Add(100'000), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 1), Pair(0, 3)));
}

TEST_F(BatcherTest, LargeRequestsTakeTurns) {
  ASSERT_THAT(Add(12), IsOk());
  ASSERT_THAT(Add(8), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
}

TEST_F(BatcherTest, DoesNotMergeBeyondMergeRows) {
  config_.max_batch_size = 64;
  for (const int64_t rows : {1, 2, 1, 3}) {
    ASSERT_THAT(Add(rows), IsOk());
  }
  EXPECT_THAT(Take(kNow, {.merge_rows = 3}), ElementsAre(Pair(0, 1), Pair(1, 2)));
  EXPECT_THAT(Take(kNow, {.merge_rows = 1}), ElementsAre(Pair(2, 1)));
}

TEST_F(BatcherTest, MergesBeyondMergeRowsWithDelay) {
  config_.max_batch_size = 4;
  config_.max_queue_delay = absl::Seconds(1);
  for (const int64_t rows : {1, 2, 1}) {
    ASSERT_THAT(Add(rows), IsOk());
  }
  EXPECT_THAT(Take(kNow, {.merge_rows = 1}), ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 1)));
}

TEST_F(BatcherTest, DoesNotMergeDifferentShapes) {
  ASSERT_THAT(Add(1), IsOk());
  ASSERT_THAT(Add(1, {}, /*columns=*/2), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 1)));
}

TEST_F(BatcherTest, UrgentPrioritiesGoFirst) {
  config_.priority_levels = 3;
  config_.default_priority_level = 2;
  ASSERT_THAT(Add(3, {.priority = 3}), IsOk());
  ASSERT_THAT(Add(3), IsOk());
  ASSERT_THAT(Add(3, {.priority = 1}), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(2, 3)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 3)));
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 3)));
}

TEST_F(BatcherTest, UnknownPrioritiesAreTheDefault) {
  config_.priority_levels = 3;
  config_.default_priority_level = 2;
  ASSERT_THAT(Add(3, {.priority = 3}), IsOk());
  ASSERT_THAT(Add(3, {.priority = 4}), IsOk());
  ASSERT_THAT(Add(3, {.priority = 1}), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(2, 3)));
  EXPECT_THAT(Take(), ElementsAre(Pair(1, 3)));
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 3)));
}

TEST_F(BatcherTest, WithoutPriorityLevelsAllRequestsAreEqual) {
  ASSERT_THAT(Add(4, {.priority = 7}), IsOk());
  ASSERT_THAT(Add(4, {.priority = 1}), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
}

TEST_F(BatcherTest, RejectsRequestsBeyondMaxQueueSize) {
  config_.priority_levels = 2;
  config_.default_priority_level = 1;
  config_.priority_queue_policies[1].max_queue_size = 2;
  ASSERT_THAT(Add(8), IsOk());
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Add(1), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queue_size")));
  EXPECT_THAT(Add(1, {.priority = 2}), IsOk());  // another priority's is another
  EXPECT_EQ(batcher().rows(), 10);
}

TEST_F(BatcherTest, RequestsExpireAtTheirDeadline) {
  ASSERT_THAT(Add(1, {.deadline = kNow + absl::Seconds(1)}), IsOk());
  ASSERT_THAT(Add(8, {.deadline = kNow + absl::Seconds(2)}), IsOk());
  EXPECT_THAT(Take(kNow + absl::Seconds(1)), ElementsAre(Pair(1, 4)));
  EXPECT_THAT(expired_, ElementsAre(0));
  // Its remaining rows do not run.
  EXPECT_THAT(Take(kNow + absl::Seconds(2)), IsEmpty());
  EXPECT_THAT(expired_, ElementsAre(1));
  EXPECT_EQ(batcher().rows(), 0);
}

TEST_F(BatcherTest, RequestsDeepInTheQueueExpire) {
  config_.max_queue_delay = absl::Seconds(10);
  ASSERT_THAT(Add(1), IsOk());
  ASSERT_THAT(Add(1, {.deadline = kNow + absl::Seconds(1)}), IsOk());
  EXPECT_THAT(Take(), IsEmpty());
  EXPECT_EQ(until_, kNow + absl::Seconds(1));
  EXPECT_THAT(Take(until_), IsEmpty());
  EXPECT_THAT(expired_, ElementsAre(1));
  EXPECT_EQ(batcher().rows(), 1);
}

TEST_F(BatcherTest, RequestsAreRejectedAfterTheQueueTimeout) {
  config_.max_queue_delay = absl::Seconds(10);
  config_.default_queue_policy.default_timeout = absl::Seconds(2);
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(), IsEmpty());
  EXPECT_EQ(until_, kNow + absl::Seconds(2));
  EXPECT_THAT(Take(until_), IsEmpty());
  EXPECT_THAT(expired_, ElementsAre(0));
}

TEST_F(BatcherTest, TimedOutRequestsAreDelayedIfThePolicySaysSo) {
  config_.default_queue_policy.default_timeout = absl::Seconds(2);
  config_.default_queue_policy.timeout_action = QueuePolicy::TimeoutAction::kDelay;
  ASSERT_THAT(Add(4), IsOk());
  ASSERT_THAT(Add(4, {.arrival = kNow + absl::Seconds(1)}), IsOk());
  EXPECT_THAT(Take(kNow + absl::Seconds(2)), ElementsAre(Pair(1, 4)));
  EXPECT_THAT(expired_, IsEmpty());
  EXPECT_THAT(Take(kNow + absl::Seconds(2)), ElementsAre(Pair(0, 4)));
}

TEST_F(BatcherTest, ARequestMayShortenItsTimeoutIfThePolicyAllowsIt) {
  config_.max_queue_delay = absl::Hours(1);
  config_.default_queue_policy.default_timeout = absl::Seconds(2);
  config_.default_queue_policy.allow_timeout_override = true;
  ASSERT_THAT(Add(1, {.timeout = absl::Seconds(1)}), IsOk());
  ASSERT_THAT(Add(1, {.timeout = absl::Seconds(3)}), IsOk());
  EXPECT_THAT(Take(kNow + absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(expired_, ElementsAre(0));
  EXPECT_THAT(Take(kNow + absl::Seconds(2)), IsEmpty());
  EXPECT_THAT(expired_, ElementsAre(1));
}

TEST_F(BatcherTest, ARequestMayNotShortenItsTimeoutByDefault) {
  config_.max_queue_delay = absl::Hours(1);
  ASSERT_THAT(Add(1, {.timeout = absl::Seconds(1)}), IsOk());
  EXPECT_THAT(Take(kNow + absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(expired_, IsEmpty());
}

TEST_F(BatcherTest, StartedRequestsDoNotTimeOut) {
  config_.default_queue_policy.default_timeout = absl::Seconds(2);
  ASSERT_THAT(Add(8), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(Take(kNow + absl::Seconds(3)), ElementsAre(Pair(0, 4)));
}

TEST_F(BatcherTest, TheRestOfARequestDoesNotWaitForAFullBatch) {
  config_.max_queue_delay = absl::Seconds(10);
  ASSERT_THAT(Add(5), IsOk());
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(Take(), ElementsAre(Pair(0, 1)));
  ASSERT_THAT(Add(1), IsOk());
  EXPECT_THAT(Take(), IsEmpty());
  EXPECT_EQ(until_, kNow + absl::Seconds(10));
}

TEST_F(BatcherTest, RemovedRequestsDoNotRun) {
  ASSERT_THAT(Add(1), IsOk());
  ASSERT_THAT(Add(8, {.deadline = kNow + absl::Seconds(1)}), IsOk());
  ASSERT_THAT(Add(1), IsOk());
  batcher().Remove(*requests_[1]);
  batcher().Remove(*requests_[1]);
  EXPECT_EQ(batcher().rows(), 2);
  EXPECT_THAT(Take(kNow + absl::Seconds(1)), ElementsAre(Pair(0, 1), Pair(2, 1)));
  EXPECT_THAT(expired_, IsEmpty());
}

}  // namespace
}  // namespace braid
