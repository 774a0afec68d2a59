// Unary operations survive broken connections and server restarts.
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

  // Creates a trainer whose policy writes no checkpoint during the test.
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

TEST_P(RestartAnywhereTest, ReplaysLostOperations) {
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

TEST_F(RestartTest, ReplaysAgainAfterARestartDuringReplay) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 4);
  service_.Inject({Fault::kCrash, Fault::kNone, Fault::kNone, Fault::kCrashAfterwards});
  Steps(trainer, 4, 6);
  EXPECT_EQ(service_.history(), StepsInOrder(6));
}

TEST_F(RestartTest, DetectsARestartBetweenCallsByTheUptime) {
  Trainer trainer = Create(3);
  Steps(trainer, 0, 5);
  service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
  uptime_.SetSeconds(0);
  Steps(trainer, 5, 7);
  EXPECT_EQ(service_.history(), StepsInOrder(7));
}

TEST_F(RestartTest, ReplaysEveryKindOfOperation) {
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

TEST_F(RestartTest, NamesTheOperationWhoseReplayFails) {
  Trainer trainer = Create(3);
  ASSERT_TRUE(trainer.Step(Rows(0), Rows(0)).ok());
  ASSERT_TRUE(trainer.Step(Rows(1), Rows(0)).ok());
  ASSERT_TRUE(trainer.Forward(Rows(0), {.keep_graph = true}).ok());
  ASSERT_TRUE(trainer.Backward(Rows(3)).ok());
  // After its restart, the fake server keeps no graphs.
  service_.Edit([](FakeTrainer& fake) {
    fake.Restart();
    fake.loses_graph = true;
  });
  uptime_.SetSeconds(0);
  const absl::Status status = trainer.Step(Rows(4), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("operation 4 was applied, then lost in a server restart; its replay "
                        "failed: there is no graph"));
}

TEST_F(RestartTest, NextCallCompletesAnInterruptedReplay) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 3);
  service_.Inject({Fault::kCrash, Fault::kNone});
  service_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"});
  EXPECT_TRUE(absl::IsResourceExhausted(trainer.Step(Rows(3), Rows(0)).status()));
  service_.Refuse(grpc::Status::OK);
  Steps(trainer, 3, 5);
  EXPECT_EQ(service_.history(), StepsInOrder(5));
}

TEST_F(RestartTest, WaitsForTheServerUpToRestartTimeout) {
  MakeClient({.max_attempts = 2,
              .initial_backoff = absl::Milliseconds(1),
              .restart_timeout = absl::Milliseconds(100)});
  Trainer trainer = Create(1);
  // Needs more attempts than max_attempts.
  service_.Inject(std::vector<Fault>(5, Fault::kLostRequest));
  Steps(trainer, 0, 1);
  service_.Refuse({grpc::StatusCode::UNAVAILABLE, "away"});
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable(trainer.Step(Rows(1), Rows(0)).status()));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(RestartTest, RequestsACheckpointWhenTheLogIsFull) {
  Handle handle = MakeHandle();
  handle.log().Limit(2, OperationLog::kDefaultBytes);
  for (const int saved : {0, 0, 1, 1, 2}) {
    ASSERT_TRUE(handle.Execute(StepMessage(Rows(0), Rows(0), {})).ok());
    EXPECT_EQ(service_.saved(), saved);
  }
  // After one rejected checkpoint request, the client requests no more and retains nothing.
  service_.SetDurable(false);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(handle.Execute(StepMessage(Rows(0), Rows(0), {})).ok());
  EXPECT_EQ(service_.saved(), 3);
  EXPECT_EQ(handle.log().base(), handle.log().last());
}

// Checkpoints contain no graphs, so they are written before the Forward or after the Backward.
TEST_F(RestartTest, WritesNoCheckpointBetweenForwardAndBackward) {
  Handle handle = MakeHandle();
  handle.log().Limit(OperationLog::kUnlimited, 1);
  const ForwardOptions keep = {.keep_graph = true};
  ASSERT_TRUE(handle.Execute(ForwardMessage(Rows(0), keep)).ok());
  // A failed operation between them causes no checkpoint either.
  EXPECT_FALSE(handle.Execute(OptimStepMessage({})).ok());
  service_.Inject({Fault::kCrash});
  ASSERT_TRUE(handle.Execute(BackwardMessage(Rows(0))).ok());
  EXPECT_EQ(service_.saved(), 0);
  ASSERT_TRUE(handle.Execute(OptimStepMessage({})).ok());
  EXPECT_EQ(service_.saved(), 1);
  EXPECT_THAT(service_.history(), ElementsAre("forward 1", "backward 2", "optim_step 3"));
  // A checkpoint before a Forward is possible, also between two Forwards.
  ASSERT_TRUE(handle.Execute(ForwardMessage(Rows(0), keep)).ok());
  EXPECT_EQ(service_.saved(), 2);
  ASSERT_TRUE(handle.Execute(ForwardMessage(Rows(0), keep)).ok());
  EXPECT_EQ(service_.saved(), 3);
}

TEST_F(RestartTest, FailsAfterARestartWithoutACheckpointPolicy) {
  Trainer trainer = Create();
  Steps(trainer, 0, 2);
  service_.Inject({Fault::kCrash});
  const absl::Status lost = trainer.Step(Rows(2), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has no checkpoint policy"));
  ASSERT_TRUE(trainer.Refresh().ok());
  Steps(trainer, 0, 1);
}

TEST_F(RestartTest, RejectsAnEqualOperationOfAnotherClient) {
  Trainer trainer = Create();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 0, 1);
  const absl::Status behind = trainer.Step(Rows(0), Rows(0)).status();
  EXPECT_TRUE(absl::IsAborted(behind)) << behind;
  EXPECT_EQ(service_.history(), StepsInOrder(1));
}

TEST_F(RestartTest, DetectsAnotherClient) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 2, 4);
  const absl::Status behind = trainer.Step(Rows(2), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(behind)) << behind;
  EXPECT_THAT(std::string(behind.message()), HasSubstr("another client operates this trainer"));
  // The client does not replay the other client's operations.
  ASSERT_TRUE(trainer.Refresh().ok());
  service_.Inject({Fault::kCrash});
  const absl::Status lost = trainer.Step(Rows(4), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("can resend only from 5 "));
}

TEST_F(RestartTest, DoesNotReplayAfterAnotherClientRestoredACheckpoint) {
  Trainer trainer = Create(2);
  Steps(trainer, 0, 5);
  service_.Edit([](FakeTrainer& fake) { fake.GoBackTo(4); });
  const absl::Status status = trainer.Step(Rows(5), Rows(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another client has restored a checkpoint"));
  EXPECT_EQ(service_.history(), StepsInOrder(4));
}

// Another client operates the trainer after a restart or a restore.
class OtherClientTest : public RestartTest, public ::testing::WithParamInterface<int> {
 protected:
  // Returns a trainer with three applied operations. Only the first is durable.
  Trainer AtThree() {
    Trainer trainer = Create(100);
    Steps(trainer, 0, 1);
    EXPECT_TRUE(trainer.SaveCheckpoint().ok());
    Steps(trainer, 1, 3);
    return trainer;
  }
  // Expects that `trainer` is rejected without effect and works again after Refresh.
  void ExpectRejected(Trainer& trainer, bool reads_fail) {
    const std::vector<std::string> before = service_.history();
    std::vector<absl::Status> rejections = {trainer.Step(Rows(90), Rows(0)).status()};
    if (reads_fail) {
      rejections.push_back(trainer.StateDict().status());
      rejections.push_back(trainer.SaveCheckpoint().status());
    }
    for (const absl::Status& status : rejections) {
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

TEST_P(OtherClientTest, DetectsOtherOperationsInPlaceOfLostOnes) {
  Trainer trainer = AtThree();
  RestartServer();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 1, 2 + GetParam());
  // A state newer than the client has seen can be read.
  ExpectRejected(trainer, GetParam() < 2);
}

TEST_P(OtherClientTest, DetectsARestoreAtAnyNumber) {
  Trainer trainer = AtThree();
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE(other->RestoreCheckpoint().ok());
  Steps(*other, 1, 1 + GetParam());
  if (GetParam() == 0) RestartServer();
  ExpectRejected(trainer, true);
}

INSTANTIATE_TEST_SUITE_P(Others, OtherClientTest, ::testing::Range(0, 3));

TEST_F(RestartTest, ContinuesFromItsOwnRestoredCheckpoint) {
  Trainer trainer = Create(2);
  Steps(trainer, 0, 5);
  ASSERT_TRUE(trainer.RestoreCheckpoint("sequence-2").ok());
  Steps(trainer, 2, 6);
  EXPECT_EQ(service_.history(), StepsInOrder(6));
}

}  // namespace
}  // namespace braid::client
