// A step that is made in pieces is the step of the whole batch.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr double kDouble = 1e-12;  // as exact as float64 sums in another order are

TrainerSpec SpecOf(int64_t micro_batch, LossMode mode = LossMode::kCentral) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.3, .momentum = 0.9});
  spec.micro_batch = micro_batch;
  spec.loss_mode = mode;
  return spec;
}

class MicroBatchTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, MicroBatchTest, ::testing::Values(1, 2, 3, 4));

TEST_P(MicroBatchTest, PiecesMakeTheWholeStep) {
  for (const LossMode mode : {LossMode::kCentral, LossMode::kPerReplica}) {
    for (const int64_t micro_batch : {1, 2, 3}) {
      TrainedModule trained(Mlp(), GetParam(), SpecOf(micro_batch, mode));
      TrainedModule whole(Mlp(), 1, SpecOf(0));
      for (const int64_t rows : {20, 7, 4, 1}) {
        BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                                   trained.Step(Inputs(rows), Classes(rows)));
        for (const TrainingChunk& chunk : result.chunks) {
          EXPECT_LE(chunk.rows, micro_batch);
        }
        BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult expected,
                                   whole.Step(Inputs(rows), Classes(rows)));
        EXPECT_NEAR(*result.loss, *expected.loss, kDouble);
      }
      ExpectSameState(trained.state(), whole.state(), kDouble);
    }
  }
}

TEST_P(MicroBatchTest, PiecesAreWeightedByWhatCountsInThem) {
  at::Tensor targets = Classes(9);
  targets.narrow(0, 0, 4).fill_(-1);  // the first pieces hold nothing, or less
  TrainerSpec spec = SpecOf(1);
  spec.losses[0].ignore_index = -1;
  spec.losses[0].class_weights = {1, 2, 0.5, 3};
  TrainerSpec at_once = spec;
  at_once.micro_batch = 0;
  TrainedModule trained(Mlp(), GetParam(), spec);
  TrainedModule whole(Mlp(), 1, at_once);
  ASSERT_THAT(trained.Step(Inputs(9), targets), IsOk());
  ASSERT_THAT(whole.Step(Inputs(9), targets), IsOk());
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

TEST_P(MicroBatchTest, PiecesAddToWhatHasAccumulated) {
  TrainedModule trained(Mlp(), GetParam(), SpecOf(2));
  TrainedModule whole(Mlp(), 1, SpecOf(0));
  for (const int64_t rows : {3, 20, 5}) {
    ASSERT_THAT(trained.ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
    ASSERT_THAT(whole.ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
  }
  EXPECT_EQ(trained->accumulated(), 3);
  ASSERT_THAT(trained.Update(), IsOk());
  ASSERT_THAT(whole.Update(), IsOk());
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

TEST_P(MicroBatchTest, ForwardAndEvaluationAreThoseOfTheWhole) {
  TrainedModule trained(Mlp(), GetParam(), SpecOf(1));
  TrainedModule whole(Mlp(), 1, SpecOf(0));
  const OperationResult ours =
      *trained->Forward(trained.BatchOf(Inputs(9), Classes(9), Mode::kEval), false);
  const OperationResult theirs =
      *whole->Forward(whole.BatchOf(Inputs(9), Classes(9), Mode::kEval), false);
  EXPECT_THAT(ours.outputs[0].shape, ElementsAre(9, 4));
  EXPECT_TRUE(at::allclose(View(ours.outputs[0]), View(theirs.outputs[0]), kDouble, kDouble));
  EXPECT_NEAR(*ours.loss, *theirs.loss, kDouble);
  BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult evaluated,
                             trained.Evaluate(Inputs(9), Classes(9)));
  BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult expected,
                             whole.Evaluate(Inputs(9), Classes(9)));
  EXPECT_NEAR(*evaluated.loss, *expected.loss, kDouble);
  EXPECT_EQ(evaluated.metrics, expected.metrics);
  EXPECT_EQ(evaluated.rows, 9);
}

// A later, smaller piece is cut into more chunks than the first: 4 rows on 3 replicas are 2 and 2,
// 3 rows are 1, 1 and 1.
TEST(MicroBatchStagesTest, EveryReplicaThatHadAPieceCounts) {
  TrainerSpec spec = SpecOf(2);
  spec.stages = {{"first", {"cpu:0", "cpu:1", "cpu:2"}}, {"second", {"cpu:0", "cpu:1"}}};
  TrainedModule trained(TwoStages(), 3, spec);
  TrainedModule whole(TwoStages(), 1, SpecOf(0));
  ASSERT_THAT(trained.status(), IsOk());
  for (int step = 0; step < 2; ++step) {
    ASSERT_THAT(trained.Step(Inputs(7), Classes(7)), IsOk());
    ASSERT_THAT(whole.Step(Inputs(7), Classes(7)), IsOk());
  }
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

// A piece in the middle fails: what had accumulated before is left as it was.
TEST(MicroBatchFailureTest, AFailedPieceChangesNothing) {
  torch::jit::Module module = TwoLayers();
  module.define(R"(
def forward(self, x):
  assert bool((x <= 100).all()), "a number is too large"
  return torch.tanh(x @ self.w1 + self.b1) @ self.w2
)");
  TrainedModule trained(module, 2, SpecOf(2));
  TrainedModule spared(module, 2, SpecOf(2));
  at::Tensor bad = Inputs(20);
  bad[10].fill_(1000);
  ASSERT_THAT(trained.ForwardBackward(Inputs(5), Classes(5)), IsOk());
  EXPECT_EQ(trained.Step(bad, Classes(20)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trained->accumulated(), 1);
  ASSERT_THAT(trained.Update(), IsOk());
  ASSERT_THAT(spared.Step(Inputs(5), Classes(5)), IsOk());
  ExpectSameState(trained.state(), spared.state(), 0);
}

TEST(MicroBatchTest, OneOfAnySizeIsTheWholeChunk) {
  for (const int64_t most : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    TrainerSpec spec = TrainedSpec();
    spec.micro_batch = most;
    TrainedModule trained(Mlp(), 3, spec);
    TrainedModule whole(Mlp(), 3);
    for (TrainedModule* each : {&trained, &whole}) {
      ASSERT_THAT(each->Step(Inputs(8), Classes(8)), IsOk());
    }
    ExpectSameState(trained.state(), whole.state(), 0);
  }
}

}  // namespace
}  // namespace braid
