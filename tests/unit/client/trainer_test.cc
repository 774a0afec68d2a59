#include "client/cpp/trainer.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/trainer_fixture.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Fault = FakeTrainingService::Fault;

class TrainerTest : public TrainerFixture {
 protected:
  // Returns the calls received after the trainer's creation.
  std::vector<std::string> Operations() const {
    std::vector<std::string> calls = service_.received();
    calls.erase(calls.begin());
    return calls;
  }
};

TEST_F(TrainerTest, NumbersOperationsFromOne) {
  Trainer trainer = Create();
  EXPECT_TRUE(trainer.Step(Rows(0), Rows(1)).ok());
  EXPECT_TRUE(trainer.ForwardBackward(Rows(0), Rows(1)).ok());
  EXPECT_TRUE(trainer.OptimStep().ok());
  EXPECT_TRUE(trainer.Forward(Rows(0), {.keep_graph = true}).ok());
  EXPECT_TRUE(trainer.Backward(Rows(0)).ok());
  EXPECT_TRUE(trainer.Publish().ok());
  EXPECT_THAT(Operations(), ElementsAre("step 1", "forward_backward 2", "optim_step 3", "forward 4",
                                        "backward 5", "publish 6"));
  EXPECT_EQ(trainer.sequence(), 6);
}

TEST_F(TrainerTest, StepSendsItsTensorsAndHyperParameters) {
  Trainer trainer = Create();
  StepOptions options;
  options.hyper_parameters.set_lr(0.05);
  options.report_split = true;
  absl::StatusOr<LossResult> result = trainer.Step(Rows(1), Rows(2), options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss, 1);
  ASSERT_THAT(service_.steps(), SizeIs(1));
  const v1::StepRequest step = service_.steps()[0];
  EXPECT_EQ(step.trainer(), "t");
  EXPECT_EQ(step.hyper_parameters().lr(), 0.05);
  EXPECT_TRUE(step.report_split());
  ASSERT_EQ(step.inputs_size(), 1);
  EXPECT_EQ(step.inputs(0).name(), "x");
  EXPECT_EQ(step.inputs(0).datatype(), "FP32");
  EXPECT_THAT(step.inputs(0).shape(), ElementsAre(1, 2));
  EXPECT_EQ(step.inputs(0).data(), Rows(1)[0].data);
  EXPECT_EQ(step.targets(0).data(), Rows(2)[0].data);
}

TEST_F(TrainerTest, ResendsALostRequestUnchanged) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostRequest});
  absl::StatusOr<LossResult> result = trainer.Step(Rows(1), Rows(2));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->status.replayed());
  EXPECT_THAT(Operations(), ElementsAre("step 1", "step 1"));
  const std::vector<v1::StepRequest> steps = service_.steps();
  EXPECT_EQ(steps[0].SerializeAsString(), steps[1].SerializeAsString());
}

TEST_F(TrainerTest, ReturnsTheReplayedReplyAfterALostReply) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostReply});
  absl::StatusOr<LossResult> result = trainer.Step(Rows(1), Rows(2));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->status.replayed());
  EXPECT_TRUE(trainer.Step(Rows(3), Rows(4)).ok());
  EXPECT_THAT(Operations(), ElementsAre("step 1", "step 1", "step 2"));
}

TEST_F(TrainerTest, LimitsAttempts) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostReply, Fault::kLostReply, Fault::kLostReply});
  EXPECT_TRUE(absl::IsUnavailable(trainer.Step(Rows(1), Rows(2)).status()));
  EXPECT_THAT(Operations(), ElementsAre("step 1", "step 1", "step 1"));
  EXPECT_EQ(trainer.sequence(), 0);
}

TEST_F(TrainerTest, RepeatingAnOperationOfUnknownOutcomeReturnsItsResult) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostReply, Fault::kLostReply, Fault::kLostReply});
  ASSERT_FALSE(trainer.Step(Rows(1), Rows(2)).ok());
  const absl::Status other = trainer.Step(Rows(3), Rows(4)).status();
  EXPECT_TRUE(absl::IsAborted(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("call Refresh to continue"));
  absl::StatusOr<LossResult> again = trainer.Step(Rows(1), Rows(2));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->status.replayed());
  EXPECT_EQ(trainer.sequence(), 1);
}

TEST_F(TrainerTest, RefreshResolvesAnUnknownOutcome) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostReply, Fault::kLostReply, Fault::kLostReply});
  ASSERT_FALSE(trainer.Step(Rows(1), Rows(2)).ok());
  ASSERT_TRUE(trainer.Refresh().ok());
  EXPECT_EQ(trainer.sequence(), 1);
  EXPECT_EQ(trainer.info().applied_sequence(), 1);
  EXPECT_TRUE(trainer.Step(Rows(3), Rows(4)).ok());
}

TEST_F(TrainerTest, ARejectedOperationIsNotRetriedAndUsesNoNumber) {
  Trainer trainer = Create();
  service_.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "inputs[0].shape: [1, 2], not [n, 3]"});
  const absl::Status refused = trainer.Step(Rows(1), Rows(2)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(), "inputs[0].shape: [1, 2], not [n, 3]");
  service_.Refuse(grpc::Status::OK);
  EXPECT_TRUE(trainer.Step(Rows(3), Rows(4)).ok());
  EXPECT_THAT(Operations(), ElementsAre("step 1", "step 1"));
}

TEST_F(TrainerTest, ForwardReturnsALossOnlyWithTargets) {
  Trainer trainer = Create();
  absl::StatusOr<ForwardResult> without = trainer.Forward(Rows(1));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->loss.has_value());
  ASSERT_THAT(without->outputs, SizeIs(1));
  EXPECT_EQ(without->outputs[0].name, "x");
  EXPECT_THAT(without->outputs[0].shape, ElementsAre(1, 2));
  EXPECT_EQ(without->outputs[0].data, Rows(1)[0].data);
  absl::StatusOr<ForwardResult> with = trainer.Forward(Rows(1), {.targets = Rows(2)});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->loss, 2);
}

TEST_F(TrainerTest, PublishReturnsTheVersion) {
  Trainer trainer = Create();
  absl::StatusOr<int64_t> version = trainer.Publish();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 7);
}

TEST_F(TrainerTest, RetriesCreateWithTheSameRequestId) {
  service_.Inject({Fault::kLostReply});
  EXPECT_TRUE(client_->CreateTrainer({}).ok());
  ASSERT_THAT(service_.received(), SizeIs(2));
  EXPECT_EQ(service_.received()[0], service_.received()[1]);
  // A new request has a new ID.
  EXPECT_TRUE(absl::IsAlreadyExists(client_->CreateTrainer({}).status()));
}

TEST_F(TrainerTest, AttachContinuesFromTheServersNumber) {
  Trainer first = Create();
  ASSERT_TRUE(first.Step(Rows(1), Rows(2)).ok());
  absl::StatusOr<Trainer> attached = client_->AttachTrainer("t");
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->info().model(), "toy");
  EXPECT_TRUE(attached->Step(Rows(3), Rows(4)).ok());
  EXPECT_EQ(attached->sequence(), 2);
  EXPECT_TRUE(absl::IsNotFound(client_->AttachTrainer("unknown").status()));
}

TEST_F(TrainerTest, DeleteWhoseReplyWasLostSucceeds) {
  Trainer trainer = Create();
  service_.Inject({Fault::kLostReply});
  EXPECT_TRUE(trainer.Delete().ok());
  EXPECT_THAT(Operations(), ElementsAre("delete t", "delete t"));
  EXPECT_TRUE(absl::IsNotFound(trainer.Delete()));
}

TEST_F(TrainerTest, TrainerOutlivesItsClient) {
  Trainer trainer = Create();
  client_.reset();
  EXPECT_TRUE(trainer.Step(Rows(1), Rows(2)).ok());
}

v1::GetStateDictResponse Piece(const std::string& name, int64_t offset, const std::string& data) {
  v1::GetStateDictResponse piece;
  piece.set_name(name);
  piece.set_datatype("UINT8");
  piece.add_shape(4);
  piece.set_offset(offset);
  piece.set_data(data);
  return piece;
}

TEST_F(TrainerTest, StateDictRestartsAfterALostConnection) {
  Trainer trainer = Create();
  service_.SetState({Piece("a", 0, "12"), Piece("a", 2, "34"), Piece("b", 0, "5678")});
  service_.Inject({Fault::kLostReply});
  absl::StatusOr<std::vector<StateEntry>> state = trainer.StateDict();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_THAT(*state, SizeIs(2));
  EXPECT_EQ((*state)[0].tensor.data, "1234");
  EXPECT_EQ((*state)[1].tensor.data, "5678");
}

TEST_F(TrainerTest, RejectsAnIncompleteStateDict) {
  Trainer trainer = Create();
  service_.SetState({Piece("a", 0, "12")});
  const absl::Status ended = trainer.StateDict().status();
  EXPECT_TRUE(absl::IsInternal(ended));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("\"a\" lacks 2 bytes"));
  service_.SetState({Piece("a", 2, "34"), Piece("b", 0, "5678")});
  const absl::Status began = trainer.StateDict().status();
  EXPECT_TRUE(absl::IsInternal(began));
  EXPECT_THAT(std::string(began.message()), StartsWith("state dict: 2 bytes at offset 2 of \"a\""));
}

TEST_F(TrainerTest, ListsTrainersAndRollsBack) {
  EXPECT_THAT(*client_->Trainers(), SizeIs(0));
  Create();
  auto trainers = client_->Trainers();
  ASSERT_TRUE(trainers.ok()) << trainers.status();
  ASSERT_THAT(*trainers, SizeIs(1));
  EXPECT_EQ(trainers->front().name(), "t");
  absl::StatusOr<int64_t> previous = client_->Rollback("toy", 2);
  ASSERT_TRUE(previous.ok()) << previous.status();
  EXPECT_EQ(*previous, 3);
  EXPECT_THAT(Operations(), ElementsAre("rollback toy 2"));
}

TEST_F(TrainerTest, SavesListsAndRestoresCheckpoints) {
  Trainer trainer = Create();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(trainer.Step(Rows(i), Rows(1)).ok());
    if (i % 2 == 1) {
      ASSERT_TRUE(trainer.SaveCheckpoint().ok());
    }
  }
  auto checkpoints = trainer.ListCheckpoints();
  ASSERT_TRUE(checkpoints.ok()) << checkpoints.status();
  ASSERT_THAT(*checkpoints, SizeIs(2));
  EXPECT_EQ((*checkpoints)[1].sequence(), 4);
  auto restored = trainer.RestoreCheckpoint((*checkpoints)[0].name());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->sequence(), 2);
  EXPECT_EQ(trainer.sequence(), 2);
  EXPECT_EQ(trainer.info().step(), 2);
  ASSERT_TRUE(trainer.Step(Rows(9), Rows(1)).ok());
  EXPECT_THAT(service_.history(), ElementsAre("step 1 of 0", "step 2 of 1", "step 3 of 9"));
  EXPECT_TRUE(absl::IsNotFound(trainer.RestoreCheckpoint("none").status()));
}

TEST_F(TrainerTest, RestoresRunningAndExpiredTrainersByName) {
  Trainer trainer = Create();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(trainer.Step(Rows(i), Rows(1)).ok());
    if (i < 2) {
      ASSERT_TRUE(trainer.SaveCheckpoint().ok());
    }
  }
  absl::StatusOr<RestoredTrainer> newest = client_->RestoreTrainer("t");
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->checkpoint.sequence(), 2);
  EXPECT_EQ(newest->trainer.sequence(), 2);
  absl::StatusOr<RestoredTrainer> first = client_->RestoreTrainer("t", "sequence-1");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->checkpoint.sequence(), 1);
  ASSERT_TRUE(first->trainer.Step(Rows(9), Rows(1)).ok());
  EXPECT_THAT(service_.history(), ElementsAre("step 1 of 0", "step 2 of 9"));
  EXPECT_TRUE(absl::IsNotFound(client_->RestoreTrainer("other").status()));
}

TEST_F(TrainerTest, EvaluateSendsItsOptionsOnceAndEveryBatch) {
  Trainer trainer = Create();
  std::vector<Batch> batches;
  for (int i = 0; i < 3; ++i)
    batches.push_back({Rows(static_cast<float>(i)), Rows(static_cast<float>(i))});
  absl::StatusOr<v1::EvaluateResponse> reply =
      trainer.Evaluate(std::move(batches), {.metrics = {"accuracy", "top_k"}, .k = 3});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->loss(), 0.75);
  EXPECT_EQ(reply->rows(), 3);
  const std::vector<v1::EvaluateRequest> requests = service_.evaluated();
  ASSERT_THAT(requests, SizeIs(3));
  EXPECT_EQ(requests[0].trainer(), "t");
  EXPECT_THAT(requests[0].metrics(), ElementsAre("accuracy", "top_k"));
  EXPECT_EQ(requests[0].k(), 3);
  EXPECT_EQ(requests[1].trainer(), "");
  EXPECT_EQ(requests[2].inputs(0).data(), Rows(2)[0].data);
  EXPECT_EQ(requests[2].targets(0).data(), Rows(2)[0].data);
  EXPECT_THAT(service_.history(), SizeIs(0));
}

TEST_F(TrainerTest, EvaluateReturnsServerErrorsAndRequiresABatch) {
  Trainer trainer = Create();
  EXPECT_TRUE(absl::IsInvalidArgument(trainer.Evaluate(std::vector<Batch>()).status()));
  service_.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "metrics[0]: is unknown"});
  // More batches than the flow-control window holds, so the client must notice the error.
  const absl::Status refused =
      trainer.Evaluate([] {
               return std::optional<Batch>({Rows(0), Rows(0)});
             })
          .status();
  EXPECT_EQ(refused.message(), "metrics[0]: is unknown");
}

}  // namespace
}  // namespace braid::client
