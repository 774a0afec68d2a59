// A stream applies its operations once and in order, and delivers results in that order.
#include "client/cpp/stream.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/stream_fixture.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Fault = FakeTrainingService::Fault;

constexpr int kOperations = 9;

using StreamTest = StreamFixture;

TEST_F(StreamTest, DeliversResultsInOrder) {
  Trainer trainer = Create();
  EXPECT_EQ(Lost(Run(trainer, kOperations, {.depth = 4})), 0);
  EXPECT_EQ(service_.history(), StepsInOrder(kOperations));
  EXPECT_EQ(service_.streams(), 1);
  EXPECT_EQ(trainer.sequence(), kOperations);
}

TEST_F(StreamTest, SupportsEveryKindOfOperation) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 4});
  auto first = stream->ForwardBackward(Rows(0), Rows(0), true);
  auto updated = stream->OptimStep();
  StepOptions options;
  options.hyper_parameters.set_momentum(0.5);
  auto stepped = stream->Step(Rows(1), Rows(0), options);
  auto version = stream->Publish();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(first.get()->loss, 1);
  EXPECT_EQ(updated.get()->status.step(), 1);
  EXPECT_EQ(stepped.get()->status.step(), 2);
  EXPECT_EQ(*version.get(), 7);
  ASSERT_THAT(service_.steps(), SizeIs(1));
  EXPECT_EQ(service_.steps()[0].hyper_parameters().momentum(), 0.5);
  EXPECT_THAT(service_.history(),
              ElementsAre("forward_backward 1 of 0", "optim_step 2", "step 3 of 1", "publish 4"));
}

TEST_F(StreamTest, TrainerOperationsFailWhileAStreamIsOpen) {
  Trainer trainer = Create();
  ASSERT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
  std::unique_ptr<Stream> stream = Open(trainer, {});
  ASSERT_TRUE(stream->Step(Rows(1), Rows(0)).get().ok());
  const absl::Status busy = trainer.Step(Rows(9), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(busy));
  EXPECT_THAT(std::string(busy.message()), HasSubstr("a stream is open"));
  EXPECT_TRUE(absl::IsFailedPrecondition(trainer.Refresh()));
  EXPECT_TRUE(absl::IsFailedPrecondition(trainer.RestoreCheckpoint().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(trainer.OpenStream().status()));
  EXPECT_TRUE(trainer.ListCheckpoints().ok());
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_TRUE(trainer.Step(Rows(2), Rows(0)).ok());
  const absl::Status ended = stream->Step(Rows(9), Rows(0)).get().status();
  EXPECT_THAT(std::string(ended.message()), HasSubstr("already finished"));
  stream.reset();
  EXPECT_EQ(service_.history(), StepsInOrder(3));
}

TEST_F(StreamTest, RejectsOptionsBelowOne) {
  Trainer trainer = Create();
  for (const StreamOptions& options :
       {StreamOptions{.depth = 0}, StreamOptions{.buffer_operations = 0},
        StreamOptions{.buffer_bytes = 0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(trainer.OpenStream(options).status()));
  }
  EXPECT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
}

TEST_F(StreamTest, DepthLimitsOperationsInFlight) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 3});
  service_.Hold(true);
  for (int i = 0; i < 3; ++i) stream->Step(Rows(static_cast<float>(i)), Rows(0));
  absl::Notification handed_over;
  std::thread fourth([&] {
    stream->Step(Rows(3), Rows(0));
    handed_over.Notify();
  });
  EXPECT_FALSE(handed_over.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  service_.Hold(false);
  fourth.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

TEST_F(StreamTest, SendsNothingAfterAPublishUntilItsReply) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 4});
  service_.Inject({Fault::kNone, Fault::kWithheld, Fault::kLostReply});
  stream->Step(Rows(0), Rows(0));
  auto version = stream->Publish();
  auto behind = stream->Step(Rows(1), Rows(0));
  // The step is not sent before the reply to Publish.
  service_.AwaitHistory(2);
  EXPECT_EQ(version.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_THAT(service_.history(), ElementsAre("step 1 of 0", "publish 2"));
  stream.reset();
  EXPECT_TRUE(absl::IsCancelled(version.get().status()));
  EXPECT_TRUE(absl::IsCancelled(behind.get().status()));
}

TEST_F(StreamTest, AFailedOperationEndsTheStream) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 4});
  service_.Hold(true);
  auto first = stream->Step(Rows(0), Rows(0));
  auto failing = stream->OptimStep();
  auto behind = stream->Step(Rows(1), Rows(0));
  service_.Hold(false);
  const absl::Status failure = stream->Finish();
  EXPECT_TRUE(absl::IsFailedPrecondition(failure)) << failure;
  EXPECT_EQ(failure.message(), "there are no gradients");
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(failing.get().status(), failure);
  const absl::Status cancelled = behind.get().status();
  EXPECT_TRUE(absl::IsCancelled(cancelled));
  EXPECT_THAT(std::string(cancelled.message()),
              HasSubstr("earlier operation 2 failed: there are no gradients"));
  EXPECT_EQ(stream->Step(Rows(2), Rows(0)).get().status(), failure);
  // The failed operation used no number.
  EXPECT_TRUE(trainer.Step(Rows(1), Rows(0)).ok());
  EXPECT_EQ(service_.history(), StepsInOrder(2));
}

TEST_F(StreamTest, DetectsAnotherClient) {
  Trainer trainer = Create(100);
  std::unique_ptr<Stream> stream = Open(trainer, {});
  ASSERT_TRUE(stream->Step(Rows(0), Rows(0)).get().ok());
  ASSERT_TRUE(client_->AttachTrainer("t")->Step(Rows(8), Rows(0)).ok());
  const absl::Status same_number = stream->Step(Rows(1), Rows(0)).get().status();
  EXPECT_TRUE(absl::IsAborted(same_number)) << same_number;
  EXPECT_THAT(std::string(same_number.message()), HasSubstr("another client operates"));
  EXPECT_EQ(stream->Finish(), same_number);
}

TEST_F(StreamTest, DestructionCancelsOperationsInFlight) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 3});
  ASSERT_TRUE(stream->Step(Rows(0), Rows(0)).get().ok());
  service_.Hold(true);
  auto under_way = stream->Step(Rows(1), Rows(0));
  stream.reset();
  EXPECT_TRUE(absl::IsCancelled(under_way.get().status()));
  service_.AwaitStreamsOver();
  service_.Hold(false);
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_TRUE(trainer.Step(Rows(2), Rows(0)).ok());
}

TEST_F(StreamTest, TimesOutWithoutReplies) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.timeout = absl::Milliseconds(50)});
  service_.Hold(true);
  const absl::Status timed_out = stream->Step(Rows(0), Rows(0)).get().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  EXPECT_EQ(timed_out.message(), "no reply in 50ms");
  service_.Hold(false);
}

TEST_F(StreamTest, RequestsACheckpointWhenTheLogIsFull) {
  Trainer trainer = Create(1000);
  Run(trainer, kOperations, {.depth = 2, .buffer_operations = 4});
  EXPECT_EQ(service_.saved(), 2);
  EXPECT_EQ(service_.history(), StepsInOrder(kOperations));
}

TEST_F(StreamTest, WaitsForTheServersCheckpointsBeforeRequestingOne) {
  Trainer trainer = Create(3);
  Run(trainer, kOperations, {.depth = 2, .buffer_operations = 4});
  EXPECT_EQ(service_.saved(), 0);
}

TEST_F(StreamTest, RequestsNoSecondCheckpointFromAServerWithoutCheckpoints) {
  Trainer trainer = Create(1000);
  service_.SetDurable(false);
  Run(trainer, kOperations, {.depth = 2, .buffer_operations = 2});
  EXPECT_EQ(service_.saved(), 1);
}

TEST_F(StreamTest, AcceptsOperationsFromSeveralThreads) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {.depth = 3});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i)
        EXPECT_TRUE(stream->Step(Rows(static_cast<float>(i)), Rows(0)).get().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(service_.history(), SizeIs(40));
}

TEST_F(StreamTest, OpensNoConnectionWithoutOperations) {
  Trainer trainer = Create();
  EXPECT_THAT(Run(trainer, 0, {}), IsEmpty());
  EXPECT_EQ(service_.streams(), 0);
}

}  // namespace
}  // namespace braid::client
