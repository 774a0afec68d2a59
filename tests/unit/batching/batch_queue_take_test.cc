// BatchQueue::Take() at times that the test chooses.
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr absl::Time kArrival = absl::UnixEpoch();  // of what MakeRequest() makes

class TakeTest : public ::testing::Test {
 protected:
  TakeTest() { config_.max_queue_delay = absl::Milliseconds(5); }

  // Makes a queue without workers, so that only the test takes from it.
  void Start() {
    const auto echo = [](const Tensors& inputs) -> absl::StatusOr<Tensors> { return inputs; };
    queue_ = std::make_shared<BatchQueue>(config_, /*version=*/1,
                                          ReplicaSet(fleet_.workers(), Puppets(fleet_, echo)),
                                          fleet_.metrics());
  }
  // Returns when there will be work; nullopt if `work_` is set.
  std::optional<absl::Time> Take(absl::Time now) {
    WorkSource::Next next = queue_->Take(fleet_.worker(0), now);
    if (auto* work = std::get_if<WorkSource::Work>(&next)) {
      work_ = std::move(*work);
      return std::nullopt;
    }
    return std::get<absl::Time>(next);
  }
  // Runs the taken batch on its worker.
  void RunTaken() { fleet_.worker(0).Post(std::exchange(work_, {})); }

  ModelConfig config_ = PuppetConfig(16);
  WorkerFleet fleet_{1};
  std::shared_ptr<BatchQueue> queue_;
  WorkSource::Work work_;
};

TEST_F(TakeTest, AnEmptyQueueHasNoWork) {
  Start();
  EXPECT_EQ(Take(kArrival), absl::InfiniteFuture());
}

TEST_F(TakeTest, APartialBatchIsDueAfterTheDelay) {
  Start();
  PendingInference pending;
  ASSERT_THAT(queue_->Push(MakeRequest(MakeRows("x", 15, 0), &pending)), IsOk());
  EXPECT_EQ(Take(kArrival), kArrival + absl::Milliseconds(5));
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(4)), kArrival + absl::Milliseconds(5));
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(5)), std::nullopt);
  RunTaken();
  EXPECT_THAT(pending.Wait(), IsOk());
  EXPECT_EQ(Take(kArrival), absl::InfiniteFuture());
}

TEST_F(TakeTest, AFullBatchIsDueAtOnce) {
  Start();
  PendingInference first;
  PendingInference second;
  ASSERT_THAT(queue_->Push(MakeRequest(MakeRows("x", 15, 0), &first)), IsOk());
  ASSERT_THAT(queue_->Push(MakeRequest(MakeRows("x", 1, 0), &second)), IsOk());
  EXPECT_EQ(Take(kArrival), std::nullopt);
  RunTaken();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), IsOk());
}

TEST_F(TakeTest, ExpiredRequestsFailBeforeABatchIsDue) {
  Start();
  PendingInference expired;
  PendingInference live;
  ASSERT_THAT(
      queue_->Push(MakeRequest(MakeRows("x", 1, 0), &expired, kArrival + absl::Milliseconds(1))),
      IsOk());
  ASSERT_THAT(queue_->Push(MakeRequest(MakeRows("x", 1, 0), &live)), IsOk());
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(1)), std::nullopt);
  RunTaken();
  EXPECT_THAT(expired.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("deadline")));
  EXPECT_FALSE(live.answered());
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(2)), kArrival + absl::Milliseconds(5));
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(5)), std::nullopt);
  RunTaken();
  EXPECT_THAT(live.Wait(), IsOk());
}

TEST_F(TakeTest, ExpiredRequestsFailEvenIfNoWorkerAsks) {
  Start();
  PendingInference expired;
  PendingInference live;
  ASSERT_THAT(
      queue_->Push(MakeRequest(MakeRows("x", 1, 0), &expired, kArrival + absl::Milliseconds(1))),
      IsOk());
  ASSERT_THAT(
      queue_->Push(MakeRequest(MakeRows("x", 1, 0), &live, kArrival + absl::Milliseconds(9))),
      IsOk());
  EXPECT_EQ(queue_->Expire(kArrival), kArrival + absl::Milliseconds(1));
  EXPECT_FALSE(expired.answered());
  EXPECT_EQ(queue_->Expire(kArrival + absl::Milliseconds(1)), kArrival + absl::Milliseconds(9));
  EXPECT_THAT(expired.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("deadline")));
  EXPECT_FALSE(live.answered());
  // Called too early, for example after the clock was set back.
  EXPECT_EQ(queue_->Expire(kArrival + absl::Milliseconds(2)), kArrival + absl::Milliseconds(9));
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(5)), std::nullopt);
  RunTaken();
  EXPECT_THAT(live.Wait(), IsOk());
  EXPECT_EQ(queue_->Expire(kArrival + absl::Milliseconds(9)), absl::InfiniteFuture());
}

TEST_F(TakeTest, ExpiredRequestsDoNotOccupyTheQueue) {
  config_.default_queue_policy.max_queue_size = 1;
  Start();
  PendingInference expired;
  PendingInference live;
  PendingInference refused;
  ASSERT_THAT(queue_->Push(MakeRequest(MakeRows("x", 1, 0), &expired, kArrival)), IsOk());
  EXPECT_THAT(queue_->Push(MakeRequest(MakeRows("x", 1, 0), &live)), IsOk());
  EXPECT_THAT(expired.Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("deadline")));
  EXPECT_THAT(
      queue_->Push(MakeRequest(MakeRows("x", 1, 0), &refused)),
      StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("max_queue_size")));
  EXPECT_EQ(Take(kArrival + absl::Milliseconds(5)), std::nullopt);
  RunTaken();
  EXPECT_THAT(live.Wait(), IsOk());
}

TEST_F(TakeTest, TheRestOfAFailedRequestIsDropped) {
  config_.max_queue_delay = absl::ZeroDuration();
  config_.max_batch_size = 8;
  Start();
  PendingInference pending;
  const auto request = MakeRequest(MakeRows("x", 20, 0), &pending);
  ASSERT_THAT(queue_->Push(request), IsOk());
  EXPECT_EQ(Take(kArrival), std::nullopt);  // 8 of its rows
  request->TryStart(kArrival);              // a chunk that fails on another worker
  request->Fail(absl::InternalError("a device is gone"));
  EXPECT_EQ(Take(kArrival), absl::InfiniteFuture());
  EXPECT_FALSE(pending.answered());
  RunTaken();
  EXPECT_THAT(pending.Wait(),
              StatusIs(absl::StatusCode::kInternal, ::testing::StrEq("a device is gone")));
}

}  // namespace
}  // namespace braid
