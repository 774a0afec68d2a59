#include "server/training/trainer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trainer_bench.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrainerTest : public ::testing::Test {
 protected:
  absl::StatusOr<OperationResult> Do(Operation operation) {
    PendingOperation pending;
    trainer_->Submit(std::move(operation), pending.done());
    return pending.Wait();
  }
  std::vector<double> Weights() {
    Pending<absl::StatusOr<std::vector<StateTensor>>> pending;
    trainer_->GetState(pending.done());
    return ValuesOf<double>((*pending.Wait())[0].tensor);
  }

  TrainerBench bench_{Mlp(), /*workers=*/2};
  std::unique_ptr<Trainer> trainer_ = bench_.Create(SgdSpec{.lr = 0.1, .momentum = 0.9});
};

TEST_F(TrainerTest, StartsFromTheServedWeights) {
  const TrainerInfo info = trainer_->info();
  EXPECT_EQ(info.spec.base_version, 1);
  EXPECT_EQ(info.spec.loss.output, "y");
  EXPECT_THAT(info.devices, ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(info.step, 0);
  EXPECT_EQ(info.applied_sequence, 0);
  const at::Tensor w1 = Mlp().attr("w1").toTensor().detach();
  EXPECT_TRUE(at::equal(at::tensor(Weights(), at::kDouble).view({3, 5}), w1));
}

TEST_F(TrainerTest, AStepIsAForwardBackwardAndAnOptimStep) {
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult step, Do(BatchOperation(1, 20)));
  EXPECT_EQ(step.applied_sequence, 1);
  EXPECT_EQ(step.step, 1);
  EXPECT_FALSE(step.replayed);
  ASSERT_EQ(step.chunks.size(), 2);
  EXPECT_EQ(step.chunks[1].device, "cpu:1");
  EXPECT_EQ(step.chunks[1].rows, 10);

  const std::vector<double> stepped = Weights();
  trainer_ = bench_.Create(SgdSpec{.lr = 0.1, .momentum = 0.9});
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                             Do(BatchOperation(1, 20, OperationKind::kForwardBackward)));
  EXPECT_EQ(half.loss, step.loss);
  EXPECT_EQ(half.step, 0);
  EXPECT_EQ(trainer_->info().accumulated, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult update, Do(OptimStep(2)));
  EXPECT_EQ(update.step, 1);
  EXPECT_FALSE(update.loss.has_value());
  EXPECT_EQ(trainer_->info().accumulated, 0);
  EXPECT_EQ(Weights(), stepped);
}

TEST_F(TrainerTest, AnOperationSentTwiceIsAppliedOnce) {
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult first, Do(BatchOperation(1, 20)));
  const std::vector<double> weights = Weights();
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do(BatchOperation(1, 20)));
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.loss, first.loss);
  EXPECT_EQ(again.step, 1);
  EXPECT_EQ(Weights(), weights);
  Operation other = BatchOperation(1, 7);
  other.fingerprint = {9, 9};
  EXPECT_THAT(Do(std::move(other)), StatusIs(absl::StatusCode::kAborted, HasSubstr("sequence")));
  EXPECT_THAT(Do(BatchOperation(3, 20)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("expected 2")));
}

TEST_F(TrainerTest, AFailedOperationUsesUpNoNumber) {
  const std::vector<double> weights = Weights();
  EXPECT_THAT(Do(OptimStep(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ForwardBackward first")));
  Operation bad = BatchOperation(1, 20);
  bad.targets[0] = MakeRows("target", 20, 0);
  EXPECT_THAT(Do(std::move(bad)), RefusesField("targets[0].datatype", HasSubstr("FP32")));
  Operation unnamed = BatchOperation(1, 20);
  unnamed.inputs[0].name = "z";
  EXPECT_THAT(Do(std::move(unnamed)), RefusesField("inputs[0].name", HasSubstr("'z'")));
  Operation wild = BatchOperation(1, 20);
  wild.hyper_parameters.lr = -1;
  EXPECT_THAT(Do(std::move(wild)), RefusesField("hyper_parameters.lr", HasSubstr("-1")));
  EXPECT_EQ(Weights(), weights);
  EXPECT_EQ(trainer_->info().accumulated, 0);
  EXPECT_EQ(trainer_->info().applied_sequence, 0);
  EXPECT_THAT(Do(BatchOperation(1, 20)), IsOk());
}

TEST_F(TrainerTest, HyperParametersAreOfOneUpdate) {
  Operation still = BatchOperation(1, 20);
  still.hyper_parameters.lr = 0;
  const std::vector<double> weights = Weights();
  ASSERT_THAT(Do(std::move(still)), IsOk());
  EXPECT_EQ(Weights(), weights);
  ASSERT_THAT(Do(BatchOperation(2, 20)), IsOk());
  EXPECT_NE(Weights(), weights);
}

TEST_F(TrainerTest, PublishServesTheWeightsAsTheNextVersion) {
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  Operation publish;
  publish.kind = OperationKind::kPublish;
  publish.sequence = 2;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, Do(std::move(publish)));
  EXPECT_EQ(result.model, "m");
  EXPECT_EQ(result.version, 2);
  Operation forward = BatchOperation(3, 4, OperationKind::kForward);
  forward.mode = Mode::kEval;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult expected, Do(std::move(forward)));
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult served, bench_.Infer(4));
  EXPECT_EQ(served.version, 2);
  EXPECT_EQ(ValuesOf<double>(served.outputs[0]), ValuesOf<double>(expected.outputs[0]));
}

// Operations whose requests are gone when they are answered again.
TEST(TrainerReplayTest, ARecordedReplyOutlivesItsRequest) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return x\n");
  TrainerBench bench(module, /*workers=*/1);
  const std::unique_ptr<Trainer> trainer = bench.Create(SgdSpec{});
  const at::Tensor request = Inputs(4);
  const auto forward = [&] {
    Operation operation;
    operation.kind = OperationKind::kForward;
    operation.sequence = 1;
    operation.inputs = {ToHost(request, "x")};
    PendingOperation pending;
    trainer->Submit(std::move(operation), pending.done());
    return ValuesOf<double>(pending.Wait()->outputs[0]);
  };
  const std::vector<double> first = forward();
  request.fill_(77);  // its memory is somebody else's now
  EXPECT_EQ(forward(), first);
}

TEST(TrainerQueueTest, TooManyThatWaitAreRefusedAtOnce) {
  TrainerBench bench(Mlp(), /*workers=*/1);
  const std::unique_ptr<Trainer> trainer = bench.Create(SgdSpec{});
  std::vector<PendingOperation> pending(65);
  {
    const WorkerBlock block(bench.fleet().worker(0));
    for (size_t i = 0; i < pending.size(); ++i) {
      trainer->Submit(BatchOperation(static_cast<int64_t>(i) + 1, 2), pending[i].done());
    }
    ASSERT_TRUE(pending[64].answered());
    EXPECT_THAT(pending[64].Wait(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("64 operations")));
  }
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_THAT(pending[i].Wait(), IsOk()) << i;
  }
}

TEST(TrainerQueueTest, ADeletedTrainerAnswersEveryOperation) {
  TrainerBench bench(Mlp(), /*workers=*/1);
  std::unique_ptr<Trainer> trainer = bench.Create(SgdSpec{});
  std::vector<PendingOperation> pending(60);
  for (size_t i = 0; i < pending.size(); ++i) {
    trainer->Submit(BatchOperation(static_cast<int64_t>(i) + 1, 50), pending[i].done());
  }
  trainer.reset();
  bool deleted = false;
  for (const PendingOperation& operation : pending) {
    ASSERT_TRUE(operation.answered());
    if (deleted || !operation.Wait().ok()) {
      deleted = true;
      EXPECT_THAT(operation.Wait(),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("has been deleted")));
    }
  }
}

}  // namespace
}  // namespace braid
