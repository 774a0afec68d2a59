// Operations that are sent one by one survive broken connections and the server's restarts.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/trainer_fixture.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fault = FakeTrainingService::Fault;

class RestartTest : public TrainerFixture {
 protected:
  // Steps on Rows(from) … Rows(to - 1).
  static void Steps(Trainer& trainer, int from, int to) {
    for (int i = from; i < to; ++i) {
      absl::StatusOr<LossResult> result = trainer.Step(Rows(static_cast<float>(i)), Rows(0));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->status.applied_sequence(), i + 1);
    }
  }

  // On a new trainer whose own checkpoints are far away.
  Handle MakeHandle() {
    Create(1000);
    v1::Trainer info;
    service_.Edit([&info](FakeTrainer& fake) { info = fake.Info(); });
    const std::shared_ptr<grpc::Channel> channel = server_->InProcessChannel({});
    return {{v1::TrainingService::NewStub(channel), v1::DeviceService::NewStub(channel)},
            info,
            {.max_attempts = 3, .initial_backoff = absl::Milliseconds(1)},
            absl::Minutes(1)};
  }
};

class RestartAnywhereTest : public RestartTest,
                            public ::testing::WithParamInterface<std::tuple<int, Fault>> {};

TEST_P(RestartAnywhereTest, WhatIsLostIsMadeAgain) {
  const auto [point, fault] = GetParam();
  Trainer trainer = Create(4);
  std::vector<Fault> faults(static_cast<size_t>(point), Fault::kNone);
  faults.push_back(fault);
  service_.Inject(faults);
  Steps(trainer, 0, 9);
  EXPECT_EQ(service_.history(), StepsInOrder(9));
  EXPECT_EQ(trainer.sequence(), 9);
}

INSTANTIATE_TEST_SUITE_P(
    Points, RestartAnywhereTest,
    ::testing::Combine(::testing::Range(0, 9),
                       ::testing::Values(Fault::kCrash, Fault::kCrashAfterwards,
                                         Fault::kLostRequest, Fault::kLostReply)));

TEST_F(RestartTest, ARestartWhileAnotherIsMadeUpFor) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 4);
  service_.Inject({Fault::kCrash, Fault::kNone, Fault::kNone, Fault::kCrashAfterwards});
  Steps(trainer, 4, 6);
  EXPECT_EQ(service_.history(), StepsInOrder(6));
}

TEST_F(RestartTest, ARestartBetweenCallsShowsByTheUptime) {
  Trainer trainer = Create(3);
  Steps(trainer, 0, 5);
  service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
  uptime_.SetSeconds(0);
  Steps(trainer, 5, 7);
  EXPECT_EQ(service_.history(), StepsInOrder(7));
}

TEST_F(RestartTest, EveryKindOfOperationIsSentAgain) {
  Trainer trainer = Create(100);
  ASSERT_TRUE(trainer.ForwardBackward(Rows(1), Rows(0)).ok());
  ASSERT_TRUE(trainer.OptimStep().ok());
  ASSERT_TRUE(trainer.Forward(Rows(2), {.keep_graph = true}).ok());
  ASSERT_TRUE(trainer.Backward(Rows(3)).ok());
  ASSERT_TRUE(trainer.Publish().ok());
  service_.Inject({Fault::kCrash});
  ASSERT_TRUE(trainer.Step(Rows(4), Rows(0)).ok());
  EXPECT_THAT(service_.history(),
              ElementsAre("forward_backward 1 of 1", "optim_step 2", "forward 3", "backward 4",
                          "publish 5", "step 6 of 4"));
}

TEST_F(RestartTest, AnOperationThatFailsWhenItIsSentAgainIsNamed) {
  Trainer trainer = Create(3);
  ASSERT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
  ASSERT_TRUE(trainer.Step(Rows(1), Rows(0)).ok());
  ASSERT_TRUE(trainer.Forward(Rows(0), {.keep_graph = true}).ok());
  ASSERT_TRUE(trainer.Backward(Rows(3)).ok());
  // A server that has the forward pass, but after its restart no graph.
  service_.Edit([](FakeTrainer& fake) {
    fake.Restart();
    fake.loses_graph = true;
  });
  uptime_.SetSeconds(0);
  const absl::Status status = trainer.Step(Rows(4), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("operation 4 had been applied, was lost with the server's restart, and now "
                        "fails: there is no graph"));
}

TEST_F(RestartTest, WhatWasInterruptedGoesOnWithTheNextCall) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 3);
  service_.Inject({Fault::kCrash, Fault::kNone});
  service_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"});
  EXPECT_TRUE(absl::IsResourceExhausted(trainer.Step(Rows(3), Rows(0)).status()));
  service_.Refuse(grpc::Status::OK);
  Steps(trainer, 3, 5);
  EXPECT_EQ(service_.history(), StepsInOrder(5));
}

TEST_F(RestartTest, AServerIsWaitedForAsLongAsTheOptionSays) {
  MakeClient({.max_attempts = 2,
              .initial_backoff = absl::Milliseconds(1),
              .restart_timeout = absl::Milliseconds(100)});
  Trainer trainer = Create(1);
  // More often than max_attempts allows.
  service_.Inject(std::vector<Fault>(5, Fault::kLostRequest));
  Steps(trainer, 0, 1);
  service_.Refuse({grpc::StatusCode::UNAVAILABLE, "away"});
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable(trainer.Step(Rows(1), Rows(0)).status()));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(RestartTest, AFullBufferHasACheckpointWritten) {
  Handle handle = MakeHandle();
  handle.log().Limit(2, OperationLog::kDefaultBytes);
  for (const int saved : {0, 0, 1, 1, 2}) {
    ASSERT_TRUE(handle.Operate(StepMessage(Rows(0), Rows(0), {})).ok());
    EXPECT_EQ(service_.saved(), saved);
  }
  // A server that writes none is not asked twice, and nothing is kept for it.
  service_.SetDurable(false);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(handle.Operate(StepMessage(Rows(0), Rows(0), {})).ok());
  EXPECT_EQ(service_.saved(), 3);
  EXPECT_EQ(handle.log().base(), handle.log().last());
}

// No checkpoint holds a graph: where one is needed, it is written before or behind the two.
TEST_F(RestartTest, AFullBufferPartsNoForwardFromItsBackward) {
  Handle handle = MakeHandle();
  handle.log().Limit(OperationLog::kAnyNumber, 1);
  const ForwardOptions keep = {.keep_graph = true};
  ASSERT_TRUE(handle.Operate(ForwardMessage(Rows(0), keep)).ok());
  // What fails in between parts them neither.
  EXPECT_FALSE(handle.Operate(OptimStepMessage({})).ok());
  service_.Inject({Fault::kCrash});
  ASSERT_TRUE(handle.Operate(BackwardMessage(Rows(0))).ok());
  EXPECT_EQ(service_.saved(), 0);
  ASSERT_TRUE(handle.Operate(OptimStepMessage({})).ok());
  EXPECT_EQ(service_.saved(), 1);
  EXPECT_THAT(service_.history(), ElementsAre("forward 1", "backward 2", "optim_step 3"));
  // The room is made before the next forward, and between two of which nothing comes.
  ASSERT_TRUE(handle.Operate(ForwardMessage(Rows(0), keep)).ok());
  EXPECT_EQ(service_.saved(), 2);
  ASSERT_TRUE(handle.Operate(ForwardMessage(Rows(0), keep)).ok());
  EXPECT_EQ(service_.saved(), 3);
}

TEST_F(RestartTest, WithoutAPolicyWhatIsLostIsSaid) {
  Trainer trainer = Create();
  Steps(trainer, 0, 2);
  service_.Inject({Fault::kCrash});
  const absl::Status lost = trainer.Step(Rows(2), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has no checkpoint policy"));
  ASSERT_TRUE(trainer.Refresh().ok());
  Steps(trainer, 0, 1);
}

TEST_F(RestartTest, AnotherClientThatAsksForTheSameIsNoticed) {
  Trainer trainer = Create();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 0, 1);
  const absl::Status behind = trainer.Step(Rows(0), Rows(0)).status();
  EXPECT_TRUE(absl::IsAborted(behind)) << behind;
  EXPECT_EQ(service_.history(), StepsInOrder(1));
}

TEST_F(RestartTest, AnotherClientIsNoticed) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 2, 4);
  const absl::Status behind = trainer.Step(Rows(2), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(behind)) << behind;
  EXPECT_THAT(std::string(behind.message()), HasSubstr("another client operates this trainer"));
  // What the other did is not this one's to make again.
  ASSERT_TRUE(trainer.Refresh().ok());
  service_.Inject({Fault::kCrash});
  const absl::Status lost = trainer.Step(Rows(4), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("keeps none before 5"));
}

TEST_F(RestartTest, ACheckpointThatAnotherClientRestoredIsNotUndone) {
  Trainer trainer = Create(2);
  Steps(trainer, 0, 5);
  service_.Edit([](FakeTrainer& fake) { fake.GoBackTo(4); });
  const absl::Status status = trainer.Step(Rows(5), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another client has restored a checkpoint"));
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

// The operations of another client, which has gone on in place of what the first one has seen.
class OtherClientTest : public RestartTest, public ::testing::WithParamInterface<int> {
 protected:
  // A trainer at its third operation, of which the first is durable, and the state before.
  Trainer AtThree() {
    Trainer trainer = Create(100);
    Steps(trainer, 0, 1);
    EXPECT_TRUE(trainer.SaveCheckpoint().ok());
    Steps(trainer, 1, 3);
    return trainer;
  }
  // `trainer` is refused, with nothing done, and can go on.
  void ExpectTold(Trainer& trainer, bool reads_too) {
    const std::vector<std::string> before = service_.history();
    std::vector<absl::Status> told = {trainer.Step(Rows(90), Rows(0)).status()};
    if (reads_too) {
      told.push_back(trainer.StateDict().status());
      told.push_back(trainer.SaveCheckpoint().status());
    }
    for (const absl::Status& status : told) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status) || absl::IsAborted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("another client"));
    }
    EXPECT_EQ(service_.history(), before);
    ASSERT_TRUE(trainer.Refresh().ok());
    EXPECT_TRUE(trainer.Step(Rows(91), Rows(0)).ok());
  }
  void RestartServer() {
    service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
    uptime_.SetSeconds(0);
  }
};

TEST_P(OtherClientTest, OperationsInPlaceOfWhatARestartUndidAreNotBuiltOn) {
  Trainer trainer = AtThree();
  RestartServer();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 1, 2 + GetParam());
  // Further on than it has been, what is there is read as it is.
  ExpectTold(trainer, GetParam() < 2);
}

TEST_P(OtherClientTest, ARestorationIsNoticedWhereverTheNumbersStand) {
  Trainer trainer = AtThree();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE(other->RestoreCheckpoint().ok());
  Steps(*other, 1, 1 + GetParam());
  if (GetParam() == 0) RestartServer();
  ExpectTold(trainer, true);
}

INSTANTIATE_TEST_SUITE_P(Others, OtherClientTest, ::testing::Range(0, 3));

TEST_F(RestartTest, ACheckpointThatThisClientRestoredIsGoneOnFrom) {
  Trainer trainer = Create(2);
  Steps(trainer, 0, 5);
  ASSERT_TRUE(trainer.RestoreCheckpoint("sequence-2").ok());
  Steps(trainer, 2, 6);
  EXPECT_EQ(service_.history(), StepsInOrder(6));
}

}  // namespace
}  // namespace braid::client
