// BatchQueue with requests that fail or expire.
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/filled_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using FailingQueueTest = FilledQueueTest;
using Tensors = std::vector<at::Tensor>;

TEST_F(FailingQueueTest, ABadRowFailsOnlyItsOwnRequest) {
  Start(PuppetConfig(16), [](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    TORCH_CHECK(inputs[0].ge(0).all().item<bool>(), "negative");
    return Tensors{inputs[0] * 2};
  });
  const auto& first = Push(MakeRows("x", 2, 0));
  const auto& bad = Push(MakeRows("x", 2, -1));
  const auto& last = Push(MakeRows("x", 2, 5));
  Open();
  EXPECT_THAT(ValuesOf<float>(first.Wait()->outputs[0]), ElementsAre(0, 2));
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("model 'm' raised an error: negative")));
  EXPECT_THAT(ValuesOf<float>(last.Wait()->outputs[0]), ElementsAre(10, 12));
}

TEST_F(FailingQueueTest, CancelledRequestsAreNotRetried) {
  std::shared_ptr<InferenceRequest> cancelled;
  Start(PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    seen_.Add(inputs[0]);
    if (const auto request = std::exchange(cancelled, nullptr)) {
      request->Cancel();
    }
    TORCH_CHECK(inputs[0].ge(0).all().item<bool>(), "negative");
    return Tensors{inputs[0]};
  });
  const auto& first = Push(MakeRows("x", 2, 10));
  PendingInference second;
  cancelled = MakeRequest(MakeRows("x", 2, 100), &second);
  ASSERT_THAT(queue_->Push(cancelled), IsOk());
  const auto& bad = Push(MakeRows("x", 2, -1));
  const auto& last = Push(MakeRows("x", 2, 20));
  Open();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative")));
  EXPECT_THAT(last.Wait(), IsOk());
  EXPECT_THAT(seen_.sums(), ElementsAre(262, 21, 40, -1, 41));
}

TEST_F(FailingQueueTest, RetriesTakeTurnsWithOtherModels) {
  std::vector<char> order;  // by the worker
  PendingInference others;
  const auto other = MakeQueue(&fleet_, PuppetConfig(16), [&](const Tensors& inputs) {
    order.push_back('o');
    return absl::StatusOr<Tensors>(inputs);
  });
  Start(PuppetConfig(16), [&](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    if (order.empty()) {
      EXPECT_THAT(other->Push(MakeRequest(MakeRows("x", 1, 0), &others)), IsOk());
    }
    order.push_back('m');
    TORCH_CHECK(inputs[0].ge(0).all().item<bool>(), "negative");
    return Tensors{inputs[0]};
  });
  for (const double value : {1, 2, -1, 3}) {
    Push(MakeRows("x", 1, value));
  }
  Open();
  for (const auto& pending : pending_) {
    pending->Wait();
  }
  EXPECT_THAT(others.Wait(), IsOk());
  EXPECT_THAT(order, ElementsAre('m', 'o', 'm', 'm', 'm', 'm'));
}

TEST_F(FailingQueueTest, RequestsWhoseOutputsCannotBeCutRunAlone) {
  Start(PuppetConfig(16), [this](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    seen_.Add(inputs[0]);
    return Tensors{inputs[0].sum()};
  });
  for (int request = 0; request < 4; ++request) {
    Push(MakeRows("x", 1, request));
  }
  Open();
  for (const auto& pending : pending_) {
    EXPECT_THAT(pending->Wait(), IsOk());
  }
  EXPECT_THAT(seen_.rows(), ElementsAre(4, 1, 1, 1, 1));
}

TEST_F(FailingQueueTest, ALargeFailingRequestGetsOneReplyAndTheNextIsServed) {
  Start(PuppetConfig(8), [](const Tensors& inputs) -> absl::StatusOr<Tensors> {
    TORCH_CHECK(inputs[0].ge(0).all().item<bool>(), "negative");
    return Tensors{inputs[0]};
  });
  const auto& bad = Push(MakeRows("x", 40, -1));
  const auto& next = Push(MakeRows("x", 2, 5));
  Open();
  EXPECT_THAT(bad.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative")));
  EXPECT_THAT(next.Wait(), IsOk());
}

TEST_F(FailingQueueTest, ExpiredRequestsFailWithoutRunning) {
  Start(PuppetConfig(16), Doubling(&seen_));
  const auto& expired = Push(MakeRows("x", 2, 100), absl::UnixEpoch());
  const auto& live = Push(MakeRows("x", 2, 0));
  Open();
  EXPECT_THAT(expired.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'m'")));
  EXPECT_THAT(live.Wait(), IsOk());
  EXPECT_THAT(seen_.sums(), ElementsAre(1));
}

TEST_F(FailingQueueTest, ExpiredRequestsBehindLiveOnesDoNotRun) {
  Start(PuppetConfig(16), Doubling(&seen_));
  const auto& live = Push(MakeRows("x", 2, 0));
  const auto& expired = Push(MakeRows("x", 2, 100), absl::UnixEpoch());
  Open();
  EXPECT_THAT(live.Wait(), IsOk());
  EXPECT_THAT(expired.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'m'")));
  EXPECT_THAT(seen_.sums(), ElementsAre(1));
}

TEST_F(FailingQueueTest, AnOutputWithoutBatchDimensionIsFailedPrecondition) {
  Start(PuppetConfig(16),
        [](const Tensors& inputs) -> absl::StatusOr<Tensors> { return Tensors{inputs[0].sum(0)}; });
  const auto& pending = Push(MakeRows("x", 3, 0));
  Open();
  EXPECT_THAT(pending.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("output 'y' of model 'm'"),
                                             HasSubstr("max_batch_size: 0"))));
}

}  // namespace
}  // namespace braid
