// The data-parallel step against the same step by plain LibTorch on the whole batch.
#include "server/training/step/data_parallel.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kDouble = 1e-12;  // as exact as float64 sums in another order are

struct Sample {
  at::Tensor x;
  at::Tensor target;
};
Sample SampleOf(int64_t rows) { return {Inputs(rows), Classes(rows)}; }

// Plain LibTorch: gradients of all `samples` summed, one SGD update. Returns the losses.
std::vector<double> ReferenceStep(torch::jit::Module* module, const std::vector<Sample>& samples,
                                  double lr) {
  const std::vector<std::string> names = {"w1", "b1", "w2"};
  std::vector<at::Tensor> parameters;
  for (const std::string& name : names) {
    parameters.push_back(module->attr(name).toTensor());
  }
  std::vector<at::Tensor> sums(names.size());
  std::vector<double> losses;
  for (const Sample& sample : samples) {
    const at::Tensor loss =
        at::cross_entropy_loss(module->forward({sample.x}).toTensor(), sample.target);
    const auto gradients = torch::autograd::grad({loss}, parameters);
    for (size_t p = 0; p < names.size(); ++p) {
      sums[p] = sums[p].defined() ? sums[p] + gradients[p] : gradients[p];
    }
    losses.push_back(loss.item<double>());
  }
  for (size_t p = 0; p < names.size(); ++p) {
    parameters[p].set_data(parameters[p].detach() - lr * sums[p]);
  }
  return losses;
}

State StateOf(const torch::jit::Module& module) {
  State state;
  for (const auto& parameter : module.named_parameters()) {
    state[parameter.name] = parameter.value.detach();
  }
  return state;
}

class OnWorkersTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, OnWorkersTest, ::testing::Values(1, 2, 3, 4));

TEST_P(OnWorkersTest, AStepIsThatOfTheWholeBatch) {
  for (const int64_t rows : {1, 2, 5, 20, 97}) {
    TrainedModule trained(Mlp(), GetParam());
    torch::jit::Module reference = Mlp();
    const Sample sample = SampleOf(rows);
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Step(sample.x, sample.target));
    const std::vector<double> losses = ReferenceStep(&reference, {sample}, 0.5);
    EXPECT_NEAR(*result.loss, losses[0], kDouble);
    EXPECT_TRUE(result.updated);
    ExpectSameState(trained.state(), StateOf(reference), kDouble);
  }
}

TEST_P(OnWorkersTest, AStepIsAForwardBackwardAndAnUpdate) {
  TrainedModule whole(Mlp(), GetParam());
  TrainedModule halves(Mlp(), GetParam());
  for (const int64_t rows : {20, 3, 7}) {
    ASSERT_THAT(whole.Step(Inputs(rows), Classes(rows)), IsOk());
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                               halves.ForwardBackward(Inputs(rows), Classes(rows)));
    EXPECT_FALSE(half.updated);
    ASSERT_THAT(halves.Update(), IsOk());
  }
  ExpectSameState(halves.state(), whole.state(), 0);
}

TEST_P(OnWorkersTest, GradientsAccumulateOverBatchesOfAnySize) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{20, 1}, {1, 20}, {2, 97, 3}, {4, 3}}) {
    TrainedModule trained(Mlp(), GetParam());
    torch::jit::Module reference = Mlp();
    for (int step = 0; step < 2; ++step) {  // the second starts from gradients that were cleared
      std::vector<Sample> samples;
      for (const int64_t rows : sizes) {
        samples.push_back(SampleOf(rows));
        ASSERT_THAT(trained.ForwardBackward(samples.back().x, samples.back().target), IsOk());
      }
      EXPECT_EQ(trained->accumulated(), static_cast<int64_t>(sizes.size()));
      ASSERT_THAT(trained.Update(), IsOk());
      EXPECT_EQ(trained->accumulated(), 0);
      ReferenceStep(&reference, samples, 0.5);
    }
    ExpectSameState(trained.state(), StateOf(reference), kDouble);
  }
}

TEST_P(OnWorkersTest, ManyStepsStayWithTheReference) {
  TrainedModule trained(Mlp(), GetParam(), TrainedSpec(SgdSpec{.lr = 0.1}));
  torch::jit::Module reference = Mlp();
  for (int64_t step = 0; step < 50; ++step) {
    const Sample sample = SampleOf(20 + step % 3);
    ASSERT_THAT(trained.Step(sample.x, sample.target), IsOk());
    ReferenceStep(&reference, {sample}, 0.1);
  }
  ExpectSameState(trained.state(), StateOf(reference), 1e-10);
}

TEST_P(OnWorkersTest, TheSameAgainGivesTheSameBits) {
  const auto run = [] {
    TrainedModule trained(Mlp(), GetParam());
    for (int step = 0; step < 5; ++step) {
      EXPECT_THAT(trained.Step(Inputs(97), Classes(97)), IsOk());
    }
    return trained.state();
  };
  ExpectSameState(run(), run(), 0);
}

TEST_P(OnWorkersTest, ForwardGathersOutputsAndComputesTheLoss) {
  TrainedModule trained(Mlp(), GetParam());
  torch::jit::Module reference = Mlp();
  const Sample sample = SampleOf(7);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const OperationResult result,
      trained->Forward(trained.BatchOf(sample.x, sample.target), /*keep_graph=*/false));
  const at::Tensor y = reference.forward({sample.x}).toTensor().detach();
  ASSERT_EQ(result.outputs.size(), 1);
  EXPECT_EQ(result.outputs[0].name, "y");
  EXPECT_TRUE(at::allclose(View(result.outputs[0]), y, kDouble, kDouble));
  EXPECT_NEAR(*result.loss, at::cross_entropy_loss(y, sample.target).item<double>(), kDouble);
  EXPECT_EQ(trained->accumulated(), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult without, trained.Forward(sample.x, Mode::kEval));
  EXPECT_FALSE(without.loss.has_value());
}

TEST_P(OnWorkersTest, EvaluationIsThatOfTheWholeBatch) {
  TrainedModule trained(Mlp(), GetParam());
  torch::jit::Module reference = Mlp();
  const Sample sample = SampleOf(7);
  BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult result,
                             trained.Evaluate(sample.x, sample.target));
  const at::Tensor y = reference.forward({sample.x}).toTensor().detach();
  EXPECT_NEAR(*result.loss, at::cross_entropy_loss(y, sample.target).item<double>(), kDouble);
  EXPECT_EQ(result.metrics.at("accuracy"),
            y.argmax(1).eq(sample.target).to(at::kDouble).mean().item<double>());
  EXPECT_EQ(result.rows, 7);
}

std::vector<int64_t> RowsOf(const absl::StatusOr<OperationResult>& result) {
  std::vector<int64_t> rows;
  for (const TrainingChunk& chunk : result->chunks) {
    rows.push_back(chunk.rows);
  }
  return rows;
}

TEST(DataParallelTest, SaysHowTheBatchWasSplit) {
  TrainedModule trained(Mlp(), 3);
  EXPECT_THAT(RowsOf(trained.ForwardBackward(Inputs(20), Classes(20))), ElementsAre(7, 7, 6));
  EXPECT_EQ(trained.fleet().worker(2).samples(), 6);
  Batch batch = trained.BatchOf(Inputs(4), std::nullopt, Mode::kEval);
  batch.report_split = true;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                             trained->Forward(batch, /*keep_graph=*/false));
  EXPECT_THAT(RowsOf(result), ElementsAre(2, 2));
  EXPECT_EQ(result.chunks[1].device, "cpu:1");
  EXPECT_EQ(result.chunks[1].stage, "");
  EXPECT_THAT(result.chunks[1].input_shapes, ElementsAre("[2, 3]"));
  EXPECT_THAT(result.chunks[1].output_shapes, ElementsAre("[2, 4]"));
}

TEST(DataParallelTest, SaysWhatItTakesOnEachDevice) {
  TrainedModule trained(Mlp(), 2, TrainedSpec(AdamSpec{}));
  const std::vector<DeviceMemory> before = trained->memory();
  ASSERT_EQ(before.size(), 2);
  EXPECT_EQ(before[1].device, "cpu:1");
  // Parameters and their gradients, each padded; the others have the primary's parameters.
  const int64_t elements = 15 + 5 + 20;
  EXPECT_GE(before[0].current, int64_t{2} * 8 * elements);
  EXPECT_EQ(before[1].current, before[0].current / 2);
  ASSERT_THAT(trained.Step(Inputs(20), Classes(20)), IsOk());
  const std::vector<DeviceMemory> after = trained->memory();
  EXPECT_GT(after[0].current, before[0].current);  // the optimizer's state
  EXPECT_GT(after[0].peak, after[0].current);
}

TEST(DataParallelTest, ReplicasThatUpdateThemselvesHaveTheirOwnParameters) {
  TrainerSpec spec = TrainedSpec(SgdSpec{});
  spec.sync = SyncMode::kAllReduce;
  TrainedModule trained(Mlp(), 2, spec);
  const std::vector<DeviceMemory> memory = trained->memory();
  EXPECT_EQ(memory[1].current, memory[0].current);
}

TEST(DataParallelTest, AZeroDimOutputIsOneElementAChunk) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return (x @ self.w1).sum()\n");
  TrainedModule trained(module, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                             trained.Forward(Inputs(20), Mode::kEval));
  EXPECT_THAT(result.outputs[0].shape, ElementsAre(3));
}

// A loss of 0-dim outputs: its gradient is scattered element by element.
TEST(DataParallelTest, ZeroDimOutputsAreTrainedToo) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return (x @ self.w1).sum()\n");
  TrainedModule trained(module, 2, TrainedSpec(SgdSpec{.lr = 0.1}, "mse"));
  const at::Tensor x = Inputs(2);
  ASSERT_THAT(trained.Step(x, at::zeros({2}, at::kDouble)), IsOk());
  const at::Tensor w1 = TwoLayers().attr("w1").toTensor();
  const at::Tensor loss = at::mse_loss(at::matmul(x, w1).sum(1), at::zeros({2}, at::kDouble));
  const at::Tensor expected = w1.detach() - 0.1 * torch::autograd::grad({loss}, {w1})[0];
  EXPECT_TRUE(at::allclose(trained.state()["w1"], expected, kDouble, kDouble));
}

TEST(DataParallelTest, ABroadcastInputGoesWholeToEveryReplica) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, scale, x):\n  return (x @ self.w1) @ self.w2 * scale\n");
  ModelConfig config = TrainedConfig();
  config.inputs.insert(config.inputs.begin(), {"scale", DataType::kFp64, {4}, /*broadcast=*/true});
  HostTensor scale = MakeHost<double>("scale", {4}, {1, 2, 3, 4});
  scale.broadcast = true;
  std::vector<std::vector<double>> outputs;
  for (const int workers : {1, 3}) {
    TrainedModule trained(module, workers, TrainedSpec(), config);
    const Batch batch = trained.BatchOf({scale, ToHost(Inputs(5), "x")}, std::nullopt, Mode::kEval);
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                               trained->Forward(batch, /*keep_graph=*/false));
    EXPECT_EQ(result.chunks.front().rows, workers == 1 ? 5 : 2);
    outputs.push_back(ValuesOf<double>(result.outputs[0]));
  }
  EXPECT_THAT(outputs[1], ::testing::Pointwise(::testing::DoubleNear(kDouble), outputs[0]));
}

TEST(DataParallelTest, AModelThatIsNotBatchedCannotBeTrained) {
  ModelConfig config = TrainedConfig();
  config.max_batch_size = 0;
  const TrainedModule trained(Mlp(), 1, TrainedSpec(), config);
  EXPECT_THAT(trained.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_batch_size: 0")));
}

TEST(DataParallelTest, AModelWithoutTrainableParametersCannotBeTrained) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, x):\n  return x\n");
  const TrainedModule trained(module, 1);
  EXPECT_THAT(trained.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no parameter")));
}

}  // namespace
}  // namespace braid
