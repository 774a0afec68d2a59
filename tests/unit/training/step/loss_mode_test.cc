// Wherever the loss is computed, a step is that of the whole batch.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr double kDouble = 1e-12;  // as exact as float64 sums in another order are

TrainerSpec SpecOf(LossMode mode) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.3, .momentum = 0.9});
  spec.loss_mode = mode;
  if (mode == LossMode::kModel || mode == LossMode::kClient) {
    spec.losses.clear();
  }
  return spec;
}

// Both take the same steps.
void ExpectSameSteps(TrainedModule* a, TrainedModule* b, const std::vector<at::Tensor>& targets) {
  for (const at::Tensor& target : targets) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours, a->Step(Inputs(target.size(0)), target));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs,
                               b->Step(Inputs(target.size(0)), target));
    EXPECT_NEAR(*ours.loss, *theirs.loss, kDouble) << target.size(0) << " rows";
  }
  ExpectSameState(a->state(), b->state(), kDouble);
}

std::vector<at::Tensor> Uneven() {
  return {Classes(20), Classes(7), Classes(5), Classes(2), Classes(1)};
}

class LossModeTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, LossModeTest, ::testing::Values(1, 2, 3, 4));

TEST_P(LossModeTest, PerReplicaIsCentral) {
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    TrainerSpec spec = SpecOf(LossMode::kPerReplica);
    spec.losses[0].reduction = reduction;
    spec.losses[0].weight = 0.1;
    TrainerSpec central = spec;
    central.loss_mode = LossMode::kCentral;
    TrainedModule trained(Mlp(), GetParam(), spec);
    TrainedModule reference(Mlp(), 1, central);
    ExpectSameSteps(&trained, &reference, Uneven());
  }
}

// Whole chunks count for nothing: one is ignored, one is of a class without weight.
TEST_P(LossModeTest, ChunksThatDoNotCountChangeNothing) {
  at::Tensor targets = Classes(8);
  targets.narrow(0, 2, 2).fill_(-1);
  targets.narrow(0, 4, 2).fill_(3);
  TrainerSpec spec = SpecOf(LossMode::kPerReplica);
  spec.losses[0].ignore_index = -1;
  spec.losses[0].class_weights = {1, 2, 0.5, 0};
  TrainerSpec central = spec;
  central.loss_mode = LossMode::kCentral;
  TrainedModule trained(Mlp(), GetParam(), spec);
  TrainedModule reference(Mlp(), 1, central);
  ExpectSameSteps(&trained, &reference, {targets, targets.flip(0), Classes(7)});
}

// Two outputs, a loss of each with a target and a weight of its own.
TEST_P(LossModeTest, SeveralLossesAddUp) {
  torch::jit::Module module = TwoLayers();
  module.define(R"(
def forward(self, x):
  h = torch.tanh(x @ self.w1 + self.b1)
  return h @ self.w2, h.sum(1)
)");
  ModelConfig config = TrainedConfig();
  config.outputs = {{"y__0", DataType::kFp64, {4}}, {"y__1", DataType::kFp64, {}}};
  TrainerSpec spec = SpecOf(LossMode::kPerReplica);
  spec.losses.push_back({.name = "mse", .output = "y__1", .target = "sum", .weight = 0.25});
  TrainerSpec central = spec;
  central.loss_mode = LossMode::kCentral;
  TrainedModule trained(module, GetParam(), spec, config);
  TrainedModule reference(module, 1, central, config);
  for (const int64_t rows : {7, 3}) {
    std::vector<double> losses;
    for (TrainedModule* model : {&trained, &reference}) {
      Batch batch = model->BatchOf(Inputs(rows), Classes(rows));
      batch.targets[1] = ToHost(at::arange(rows, at::kDouble), "targets[1]");
      BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                                 (*model)->RunTrainStep(batch, nullptr));
      ASSERT_THAT(model->Update(), IsOk());
      losses.push_back(*result.loss);
    }
    EXPECT_NEAR(losses[0], losses[1], kDouble);
  }
  ExpectSameState(trained.state(), reference.state(), kDouble);
}

// x, and target INT64 [B], to the loss.
ModelConfig LossConfig() {
  ModelConfig config = TrainedConfig();
  config.inputs.push_back({"target", DataType::kInt64, {}});
  config.outputs = {{"loss", DataType::kFp64, {}}};
  return config;
}

torch::jit::Module LossModel(int reduction) {
  torch::jit::Module module = TwoLayers();
  module.define(absl::StrCat(R"(
def forward(self, x, target):
  y = torch.tanh(x @ self.w1 + self.b1) @ self.w2
  return torch.cross_entropy_loss(y, target, None, )",
                             reduction, ")\n"));
  return module;
}

TEST_P(LossModeTest, AModelsOwnLossIsCentral) {
  for (const int reduction : {0, 1}) {  // one a row, and their mean
    TrainedModule trained(LossModel(reduction), GetParam(), SpecOf(LossMode::kModel), LossConfig());
    TrainedModule reference(Mlp(), 1, SpecOf(LossMode::kCentral));
    ExpectSameSteps(&trained, &reference, Uneven());
    BRAID_ASSERT_OK_AND_ASSIGN(
        const OperationResult forward,
        trained->Forward(trained.BatchOf(Inputs(5), Classes(5), Mode::kEval), false));
    BRAID_ASSERT_OK_AND_ASSIGN(
        const OperationResult expected,
        reference->Forward(reference.BatchOf(Inputs(5), Classes(5), Mode::kEval), false));
    EXPECT_NEAR(*forward.loss, *expected.loss, kDouble);
  }
}

TEST(ModelLossTest, AnUnweightedMeanIsThatOfTheChunks) {
  TrainerSpec spec = SpecOf(LossMode::kModel);
  spec.unweighted_mean = true;
  TrainedModule trained(LossModel(1), 2, spec, LossConfig());
  TrainedModule weighted(LossModel(1), 2, SpecOf(LossMode::kModel), LossConfig());
  const at::Tensor y = Mlp().forward({Inputs(5)}).toTensor();
  const auto of_rows = [&](int64_t start, int64_t rows) {
    return at::cross_entropy_loss(y.narrow(0, start, rows), Classes(5).narrow(0, start, rows))
        .item<double>();
  };
  const double mean = (of_rows(0, 3) + of_rows(3, 2)) / 2;
  EXPECT_NEAR(*trained.Step(Inputs(5), Classes(5))->loss, mean, kDouble);
  EXPECT_GT(std::abs(*weighted.Step(Inputs(5), Classes(5))->loss - mean), 1e-3);
}

// Forward, the client's loss, Backward.
absl::Status ClientStep(TrainedModule* trained, const at::Tensor& x, const at::Tensor& target) {
  BRAID_ASSIGN_OR_RETURN(const OperationResult forward,
                         trained->Forward(x, Mode::kTrain, /*keep_graph=*/true));
  const at::Tensor y = View(forward.outputs[0]).requires_grad_(true);
  const at::Tensor gradient =
      torch::autograd::grad({at::cross_entropy_loss(y, target)}, {y}).front();
  return (*trained)->Backward({ToHost(gradient, "y")}).status();
}

TEST_P(LossModeTest, AClientsLossIsCentral) {
  TrainedModule trained(Mlp(), GetParam(), SpecOf(LossMode::kClient));
  TrainedModule reference(Mlp(), 1, SpecOf(LossMode::kCentral));
  for (const at::Tensor& target : Uneven()) {
    ASSERT_THAT(ClientStep(&trained, Inputs(target.size(0)), target), IsOk());
    EXPECT_EQ(trained->accumulated(), 1);
    ASSERT_THAT(trained.Update(), IsOk());
    ASSERT_THAT(reference.Step(Inputs(target.size(0)), target), IsOk());
  }
  ExpectSameState(trained.state(), reference.state(), kDouble);
}

TEST_P(LossModeTest, AClientsGradientsAccumulate) {
  TrainedModule trained(Mlp(), GetParam(), SpecOf(LossMode::kClient));
  TrainedModule reference(Mlp(), 1, SpecOf(LossMode::kCentral));
  for (const int64_t rows : {4, 3, 9}) {
    ASSERT_THAT(ClientStep(&trained, Inputs(rows), Classes(rows)), IsOk());
    ASSERT_THAT(reference.ForwardBackward(Inputs(rows), Classes(rows)), IsOk());
  }
  ASSERT_THAT(trained.Update(), IsOk());
  ASSERT_THAT(reference.Update(), IsOk());
  ExpectSameState(trained.state(), reference.state(), kDouble);
}

class ClientLossTest : public ::testing::Test {
 protected:
  absl::Status Backward(const std::vector<HostTensor>& gradients) {
    return trained_->Backward(gradients).status();
  }
  static HostTensor Ones(int64_t rows) { return ToHost(at::ones({rows, 4}, at::kDouble), "y"); }

  TrainedModule trained_{Mlp(), 2, SpecOf(LossMode::kClient)};
};

TEST_F(ClientLossTest, ThereIsNoBackwardWithoutAGraph) {
  const auto none = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keep_graph"));
  EXPECT_THAT(Backward({Ones(5)}), none);
  ASSERT_THAT(trained_.Forward(Inputs(5), Mode::kTrain), IsOk());
  EXPECT_THAT(Backward({Ones(5)}), none);
  ASSERT_THAT(trained_.Forward(Inputs(5), Mode::kTrain, /*keep_graph=*/true), IsOk());
  ASSERT_THAT(trained_.Forward(Inputs(5), Mode::kEval), IsOk());
  EXPECT_THAT(Backward({Ones(5)}), none);
  ASSERT_THAT(trained_.Forward(Inputs(5), Mode::kTrain, /*keep_graph=*/true), IsOk());
  ASSERT_THAT(Backward({Ones(5)}), IsOk());
  EXPECT_THAT(Backward({Ones(5)}), none);
  EXPECT_EQ(trained_->accumulated(), 1);
}

TEST_F(ClientLossTest, GradientsThatAreNotTheOutputsAreRefusedAndMayBeSentAgain) {
  ASSERT_THAT(trained_.Forward(Inputs(5), Mode::kTrain, /*keep_graph=*/true), IsOk());
  EXPECT_THAT(Backward({}), RefusesField("output_gradients", HasSubstr("empty")));
  EXPECT_THAT(Backward({Ones(4)}), RefusesField("output_gradients[0].shape", HasSubstr("[5, 4]")));
  EXPECT_THAT(Backward({ToHost(at::ones({5, 4}), "y")}),
              RefusesField("output_gradients[0].datatype", HasSubstr("FP32")));
  EXPECT_THAT(Backward({ToHost(at::ones({5, 4}, at::kDouble), "z")}),
              RefusesField("output_gradients[0].name", HasSubstr("'z'")));
  EXPECT_THAT(Backward({Ones(5), Ones(5)}),
              RefusesField("output_gradients[1].name", HasSubstr("twice")));
  EXPECT_EQ(trained_->accumulated(), 0);
  EXPECT_THAT(Backward({Ones(5)}), IsOk());
}

// The buffers are committed between forward and backward, which the graph must survive.
TEST(ClientBuffersTest, AModelMayComputeWithItsBuffers) {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("scale", at::full({4}, 2.0, at::kDouble));
  module.register_buffer("calls", at::zeros({}, at::kDouble));
  module.define(R"(
def forward(self, x):
  self.calls.add_(1)
  return torch.tanh(x @ self.w1 + self.b1) @ self.w2 * self.scale
)");
  TrainedModule trained(module, 2, SpecOf(LossMode::kClient));
  TrainedModule reference(module, 1, SpecOf(LossMode::kCentral));
  for (int step = 0; step < 2; ++step) {
    ASSERT_THAT(ClientStep(&trained, Inputs(5), Classes(5)), IsOk());
    ASSERT_THAT(trained.Update(), IsOk());
    ASSERT_THAT(reference.Step(Inputs(5), Classes(5)), IsOk());
  }
  ExpectSameState(trained.state(), reference.state(), kDouble);
}

}  // namespace
}  // namespace braid
