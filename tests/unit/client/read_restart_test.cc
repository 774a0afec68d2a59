// Reads of a trainer's state contain all operations of the client, even after a server restart.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/stream_fixture.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Fault = FakeTrainingService::Fault;

struct Read {
  const char* name;
  std::function<absl::Status(Trainer&)> call;
};

void PrintTo(const Read& read, std::ostream* out) { *out << read.name; }

class ReadRestartTest : public StreamFixture {
 protected:
  ReadRestartTest() {
    v1::GetStateDictResponse piece;
    piece.set_name("w");
    piece.set_datatype("FP32");
    piece.add_shape(1);
    piece.set_data(std::string(4, '\0'));
    service_.SetState({piece});
    v1::DownloadModelResponse file;
    file.set_total_bytes(1);
    file.set_data("x");
    service_.SetFile({file});
  }

  static void Steps(Trainer& trainer, int from, int to) {
    for (int i = from; i < to; ++i) {
      ASSERT_TRUE(trainer.Step(Rows(static_cast<float>(i)), Rows(0)).ok());
    }
  }
  // Restarts the trainer from its durable state; connections stay open.
  void Restart() {
    service_.Edit([](FakeTrainer& fake) { fake.Restart(); });
    uptime_.Restart();
  }
};

class ReadRestartEachTest : public ReadRestartTest, public ::testing::WithParamInterface<Read> {};

TEST_P(ReadRestartEachTest, ReplaysLostOperationsFirst) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 6);
  Restart();
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 6);
  Steps(trainer, 6, 8);
  EXPECT_EQ(service_.history(), StepsInOrder(8));
}

TEST_P(ReadRestartEachTest, ReplaysOperationsOfAFinishedStream) {
  Trainer trainer = Create(4);
  Run(trainer, 7, {});
  Restart();
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 7);
}

TEST_P(ReadRestartEachTest, ReplaysOperationsOfAnOpenStream) {
  Trainer trainer = Create(4);
  std::unique_ptr<Stream> stream = Open(trainer, {});
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(stream->Step(Rows(static_cast<float>(i)), Rows(0)).get().ok());
  }
  Restart();
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 6);
  ASSERT_TRUE(stream->Step(Rows(6), Rows(0)).get().ok());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(service_.history(), StepsInOrder(7));
}

TEST_P(ReadRestartEachTest, ReplaysEarlierOperationsThroughAnIdleStream) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 6);
  std::unique_ptr<Stream> stream = Open(trainer, {});
  Restart();
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 6);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(ReadRestartEachTest, DetectsARestartBetweenCheckAndCall) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 6);
  service_.AtGetTrainer([this](FakeTrainer& fake) {
    fake.Restart();
    uptime_.Restart();
  });
  const absl::Status status = GetParam().call(trainer);
  // Evaluate is not retried.
  if (std::string(GetParam().name) == "Evaluate") {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    return;
  }
  ASSERT_EQ(status, absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 6);
}

TEST_P(ReadRestartEachTest, DoesNotTakeASlowReplyForARestart) {
  Trainer trainer = Create(4);
  uptime_.Restart();
  Steps(trainer, 0, 1);
  uptime_.DelayNextReply(absl::Milliseconds(200));
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_THAT(service_.reads(), ElementsAre(1));
}

TEST_P(ReadRestartEachTest, CompletesAnInterruptedReplay) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 3);
  service_.Inject({Fault::kCrash, Fault::kNone, Fault::kLostRequest, Fault::kLostRequest});
  service_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"});
  EXPECT_FALSE(trainer.Step(Rows(3), Rows(0)).ok());
  service_.Refuse(grpc::Status::OK);
  service_.Inject({});
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_EQ(service_.reads().back(), 3);
}

TEST_P(ReadRestartEachTest, FailsAfterARestartWithoutACheckpointPolicy) {
  Trainer trainer = Create();
  Steps(trainer, 0, 2);
  Restart();
  const absl::Status lost = GetParam().call(trainer);
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr("the server restarted and lost operations up to 2"));
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_EQ(GetParam().call(trainer), absl::OkStatus());
}

TEST_P(ReadRestartEachTest, AFailedReplayEndsTheOpenStream) {
  Trainer trainer = Create();
  std::unique_ptr<Stream> stream = Open(trainer, {});
  ASSERT_TRUE(stream->Step(Rows(0), Rows(0)).get().ok());
  Restart();
  const absl::Status lost = GetParam().call(trainer);
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_EQ(stream->Finish(), lost);
}

TEST_P(ReadRestartEachTest, FailsIfAnotherClientRestoredACheckpoint) {
  Trainer trainer = Create(2);
  Steps(trainer, 0, 5);
  service_.Edit([](FakeTrainer& fake) { fake.GoBackTo(4); });
  const absl::Status status = GetParam().call(trainer);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another client has restored a checkpoint"));
}

TEST_P(ReadRestartEachTest, ReadsNewerStateOfAnotherClient) {
  Trainer trainer = Create(100);
  absl::StatusOr<Trainer> other = client_->AttachTrainer("t");
  ASSERT_TRUE(other.ok()) << other.status();
  Steps(*other, 0, 2);
  ASSERT_EQ(GetParam().call(trainer), absl::OkStatus());
  EXPECT_THAT(service_.reads(), ElementsAre(2));
}

INSTANTIATE_TEST_SUITE_P(
    Calls, ReadRestartEachTest,
    ::testing::Values(
        Read{"StateDict", [](Trainer& trainer) { return trainer.StateDict().status(); }},
        Read{"DownloadModel",
             [](Trainer& trainer) {
               const std::string path = ::testing::TempDir() + "read_restart_test";
               absl::Status status = trainer.DownloadModel(path).status();
               std::remove(path.c_str());
               return status;
             }},
        Read{"Evaluate",
             [](Trainer& trainer) {
               std::vector<Batch> batches(1);
               batches[0] = {Rows(0), Rows(0)};
               return trainer.Evaluate(std::move(batches)).status();
             }},
        Read{"SaveCheckpoint", [](Trainer& trainer) { return trainer.SaveCheckpoint().status(); }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(ReadRestartTest, RejectsANewTrainerWithTheSameName) {
  Trainer trainer = Create();
  Steps(trainer, 0, 2);
  service_.Edit([](FakeTrainer& fake) { fake.id = "2"; });
  const absl::Status status = trainer.StateDict().status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a new trainer has its name"));
  EXPECT_THAT(service_.reads(), ElementsAre());
}

TEST_F(ReadRestartTest, NamesTheOperationWhoseReplayFails) {
  Trainer trainer = Create(3);
  Steps(trainer, 0, 2);
  ASSERT_TRUE(trainer.Forward(Rows(0), {.keep_graph = true}).ok());
  ASSERT_TRUE(trainer.Backward(Rows(3)).ok());
  service_.Edit([](FakeTrainer& fake) { fake.loses_graph = true; });
  Restart();
  const absl::Status status = trainer.StateDict().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("operation 4 was applied, then lost"));
  EXPECT_THAT(service_.reads(), ElementsAre());
}

TEST_F(ReadRestartTest, RestoringTheNewestCheckpointReplaysFirst) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 7);
  service_.Edit(
      [](FakeTrainer& fake) { fake.options.mutable_checkpoints()->set_every_operations(3); });
  Restart();
  ASSERT_TRUE(trainer.RestoreCheckpoint().ok());
  EXPECT_EQ(trainer.sequence(), 6);
  Steps(trainer, 6, 8);
  EXPECT_EQ(service_.history(), StepsInOrder(8));
}

TEST_F(ReadRestartTest, RestoringANamedCheckpointReplaysNothing) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 7);
  Restart();
  ASSERT_TRUE(trainer.RestoreCheckpoint("sequence-4").ok());
  EXPECT_THAT(service_.steps(), SizeIs(7));
  Steps(trainer, 4, 6);
  EXPECT_EQ(service_.history(), StepsInOrder(6));
}

TEST_F(ReadRestartTest, RefreshReplaysFirst) {
  Trainer trainer = Create(4);
  Steps(trainer, 0, 6);
  Restart();
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_EQ(trainer.sequence(), 6);
  EXPECT_EQ(trainer.info().applied_sequence(), 6);
  Steps(trainer, 6, 8);
  EXPECT_EQ(service_.history(), StepsInOrder(8));
}

TEST_F(ReadRestartTest, RefreshDropsOperationsThatCannotBeReplayed) {
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  Restart();
  service_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory"});
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_EQ(trainer.sequence(), 0);
}

TEST_F(ReadRestartTest, RefreshKeepsTheLogWhileTheServerIsUnavailable) {
  MakeClient({.max_attempts = 2,
              .initial_backoff = absl::Milliseconds(1),
              .restart_timeout = absl::Milliseconds(20)});
  Trainer trainer = Create(100);
  Steps(trainer, 0, 2);
  Restart();
  service_.Refuse({grpc::StatusCode::UNAVAILABLE, "away"});
  EXPECT_TRUE(absl::IsUnavailable(trainer.Refresh()));
  service_.Refuse(grpc::Status::OK);
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_EQ(trainer.sequence(), 2);
}

TEST_F(ReadRestartTest, RestoringDropsOperationsThatCannotBeReplayed) {
  Trainer trainer = Create();
  Steps(trainer, 0, 2);
  ASSERT_TRUE(trainer.SaveCheckpoint().ok());
  Steps(trainer, 2, 4);
  Restart();
  ASSERT_TRUE(trainer.RestoreCheckpoint().ok());
  EXPECT_EQ(trainer.sequence(), 2);
}

}  // namespace
}  // namespace braid::client
