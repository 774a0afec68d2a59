#include "server/batching/inference_request.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;

constexpr absl::Time kNow = absl::UnixEpoch();

std::shared_ptr<InferenceRequest> Make(std::vector<HostTensor> inputs, int64_t rows,
                                       InferenceRequest::Done done) {
  return std::make_shared<InferenceRequest>(std::move(inputs), rows, InferenceRequest::Schedule{},
                                            std::move(done));
}

// A request of 10 rows, and its result.
class InferenceRequestTest : public ::testing::Test {
 protected:
  const std::shared_ptr<InferenceRequest> request_ =
      Make({MakeRows("x", 10, 0)}, 10, [this](absl::StatusOr<InferenceResult> result) {
        ++answers_;
        result_ = std::move(result);
      });
  int answers_ = 0;
  absl::StatusOr<InferenceResult> result_;
};

TEST_F(InferenceRequestTest, TheLastChunkCompletesTheRequestInRowOrder) {
  request_->TryStart(kNow);
  request_->TryStart(kNow);
  request_->TryStart(kNow);
  request_->Finish(6, 4, {MakeRows("y", 4, 106)}, "cpu:1", 3, {});
  request_->Finish(0, 2, {MakeRows("y", 2, 100)}, "cpu:0", 3, {});
  EXPECT_EQ(answers_, 0);
  request_->Finish(2, 4, {MakeRows("y", 4, 102)}, "cpu:0", 3, {});
  EXPECT_EQ(answers_, 1);
  ASSERT_THAT(result_, IsOk());
  EXPECT_EQ(result_->version, 3);
  ASSERT_EQ(result_->outputs.size(), 1);
  EXPECT_EQ(result_->outputs[0].name, "y");
  EXPECT_THAT(result_->outputs[0].shape, ElementsAre(10, 1));
  EXPECT_THAT(ValuesOf<float>(result_->outputs[0]),
              ElementsAre(100, 101, 102, 103, 104, 105, 106, 107, 108, 109));
  ASSERT_EQ(result_->chunks.size(), 3);
  EXPECT_EQ(result_->chunks[2].device, "cpu:1");
  EXPECT_EQ(result_->chunks[2].rows, 4);
}

TEST_F(InferenceRequestTest, ASingleChunkIsNotCopied) {
  const HostTensor output = MakeRows("y", 10, 0);
  request_->TryStart(kNow);
  request_->Finish(0, 10, {output}, "cpu:0", 1, {});
  ASSERT_THAT(result_, IsOk());
  EXPECT_EQ(result_->outputs[0].pieces[0].data, output.data);
}

TEST_F(InferenceRequestTest, AnErrorWaitsForRunningChunks) {
  request_->TryStart(kNow);
  request_->TryStart(kNow);
  request_->Fail(absl::InternalError("first"));
  EXPECT_EQ(answers_, 0);
  request_->Finish(0, 5, {MakeRows("y", 5, 0)}, "cpu:0", 1, {});
  EXPECT_EQ(answers_, 1);
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kInternal, StrEq("first")));
}

TEST_F(InferenceRequestTest, ReportsTheFirstError) {
  request_->TryStart(kNow);
  request_->TryStart(kNow);
  request_->Fail(absl::InternalError("first"));
  request_->Fail(absl::AbortedError("second"));
  EXPECT_EQ(answers_, 1);
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kInternal, StrEq("first")));
}

TEST_F(InferenceRequestTest, CompletesOnce) {
  request_->TryStart(kNow);
  request_->Fail(absl::InternalError("first"));
  request_->Fail(absl::InternalError("second"));
  request_->Finish(0, 10, {MakeRows("y", 10, 0)}, "cpu:0", 1, {});
  EXPECT_EQ(answers_, 1);
}

TEST_F(InferenceRequestTest, AFailedRequestDoesNotStart) {
  EXPECT_TRUE(request_->TryStart(kNow));
  EXPECT_TRUE(request_->TryStart(kNow));
  request_->Fail(absl::InternalError("first"));
  EXPECT_FALSE(request_->TryStart(kNow));  // another chunk still runs
  request_->Fail(absl::InternalError("second"));
  EXPECT_EQ(answers_, 1);
  EXPECT_FALSE(request_->TryStart(kNow));
}

// Forwards results and counts the calls.
class CountingQueue final : public InferenceRequest::Queue {
 public:
  void Remove(const InferenceRequest&) override { ++drops; }
  void Complete(const InferenceRequest& request, InferenceRequest::Done done,
                absl::StatusOr<InferenceResult> result) override {
    ++answers;
    begun = request.started();
    done(std::move(result));
  }

  int drops = 0;
  int answers = 0;
  absl::Time begun;
};

TEST_F(InferenceRequestTest, HoldsItsQueueUntilCompletion) {
  auto queue = std::make_shared<CountingQueue>();
  const std::weak_ptr<CountingQueue> watch = queue;
  request_->EnterQueue(std::move(queue), {});
  EXPECT_FALSE(watch.expired());
  request_->TryStart(kNow);
  request_->Finish(0, 10, {MakeRows("y", 10, 0)}, "cpu:0", 1, {});
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(answers_, 1);
}

TEST_F(InferenceRequestTest, CompletesThroughItsQueue) {
  const auto queue = std::make_shared<CountingQueue>();
  request_->EnterQueue(queue, {1, 7});
  EXPECT_EQ(request_->place().level, 1);
  EXPECT_EQ(request_->place().number, 7);
  EXPECT_EQ(request_->started(), absl::InfiniteFuture());
  request_->TryStart(kNow);
  request_->TryStart(kNow + absl::Seconds(1));
  request_->Finish(0, 5, {MakeRows("y", 5, 0)}, "cpu:0", 1, {});
  EXPECT_EQ(queue->answers, 0);
  request_->Finish(5, 5, {MakeRows("y", 5, 5)}, "cpu:0", 1, {});
  EXPECT_EQ(queue->answers, 1);
  EXPECT_EQ(queue->drops, 0);
  EXPECT_EQ(queue->begun, kNow);
  EXPECT_THAT(result_, IsOk());
}

TEST_F(InferenceRequestTest, ACancelledRequestLeavesItsQueueAtOnce) {
  const auto queue = std::make_shared<CountingQueue>();
  request_->EnterQueue(queue, {});
  request_->Cancel();
  EXPECT_EQ(queue->drops, 1);
  EXPECT_EQ(answers_, 1);
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_FALSE(request_->TryStart(kNow));
  request_->Cancel();
  EXPECT_EQ(answers_, 1);
}

TEST_F(InferenceRequestTest, ACancelledRequestWaitsForRunningChunks) {
  const auto queue = std::make_shared<CountingQueue>();
  request_->EnterQueue(queue, {});
  request_->TryStart(kNow);
  request_->Cancel();
  EXPECT_EQ(queue->drops, 1);
  EXPECT_EQ(answers_, 0);  // its inputs are being read
  request_->Finish(0, 4, {MakeRows("y", 4, 0)}, "cpu:0", 1, {});
  EXPECT_EQ(answers_, 1);
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
}

TEST_F(InferenceRequestTest, FailsIfChunkShapesDiffer) {
  request_->TryStart(kNow);
  request_->TryStart(kNow);
  request_->Finish(0, 5, {MakeHost<float>("y", {5, 2}, std::vector<float>(10))}, "cpu:0", 1, {});
  request_->Finish(5, 5, {MakeRows("y", 5, 0)}, "cpu:1", 1, {});
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::AllOf(HasSubstr("'y'"), HasSubstr("[5, 2]"),
                                                 HasSubstr("[5, 1]"))));
}

TEST(InferenceRequestThreadsTest, ChunksMayFinishOnAnyThread) {
  for (int round = 0; round < 50; ++round) {
    std::vector<float> values;
    int answers = 0;
    const auto request =
        Make({MakeRows("x", 40, 0)}, 40, [&](absl::StatusOr<InferenceResult> result) {
          ++answers;
          values = ValuesOf<float>(result->outputs[0]);
        });
    for (int p = 0; p < 4; ++p) {
      request->TryStart(kNow);
    }
    std::vector<std::thread> threads;
    for (int64_t p = 0; p < 4; ++p) {
      threads.emplace_back([&request, p] {
        request->Finish(p * 10, 10, {MakeRows("y", 10, static_cast<double>(p) * 10)}, "cpu:0", 1,
                        {});
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(answers, 1);
    EXPECT_EQ(values, ValuesOf<float>(MakeRows("y", 40, 0)));
  }
}

TEST(SharesBatchTest, InputsMayDifferOnlyInDimZero) {
  const auto of = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    const auto tensor = [](std::string name, const std::vector<int64_t>& shape) {
      return HostTensor{std::move(name), DataType::kFp32, shape, nullptr, 0, nullptr};
    };
    return Make({tensor("a", a), tensor("b", b)}, 1, [](const absl::StatusOr<InferenceResult>&) {});
  };
  const auto request = of({2, 3}, {2, 5});
  EXPECT_TRUE(request->SharesBatchWith(*of({7, 3}, {7, 5})));
  EXPECT_FALSE(request->SharesBatchWith(*of({2, 4}, {2, 5})));
  EXPECT_FALSE(request->SharesBatchWith(*of({2, 3}, {2, 6})));
  EXPECT_FALSE(request->SharesBatchWith(*of({2, 3, 1}, {2, 5})));
  EXPECT_FALSE(of({}, {})->SharesBatchWith(*of({}, {})));
}

TEST(GatherTest, JoinsChunksInOrder) {
  const HostTensor first = MakeHost<int64_t>("y", {1, 2}, {1, 2});
  const HostTensor none = MakeHost<int64_t>("y", {0, 2}, {});
  const HostTensor last = MakeHost<int64_t>("y", {2, 2}, {3, 4, 5, 6});
  BRAID_ASSERT_OK_AND_ASSIGN(const GatheredTensor whole, Gather({first, none, last}));
  EXPECT_THAT(whole.shape, ElementsAre(3, 2));
  EXPECT_EQ(whole.bytes, 6 * sizeof(int64_t));
  EXPECT_EQ(whole.pieces[2].data, last.data);
  EXPECT_THAT(ValuesOf<int64_t>(whole), ElementsAre(1, 2, 3, 4, 5, 6));
}

}  // namespace
}  // namespace braid
