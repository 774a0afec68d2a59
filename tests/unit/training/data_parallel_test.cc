// The data-parallel step against the same step by plain LibTorch on the whole batch.
#include "server/training/data_parallel.h"

#include <cstdint>
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

struct Batch {
  at::Tensor x;
  at::Tensor target;
};
Batch BatchOf(int64_t rows) { return {Inputs(rows), Classes(rows)}; }

// Plain LibTorch: gradients of all `batches` summed, one SGD update. Returns the losses.
std::vector<double> ReferenceStep(torch::jit::Module* module, const std::vector<Batch>& batches,
                                  double lr) {
  const std::vector<std::string> names = {"w1", "b1", "w2"};
  std::vector<at::Tensor> parameters;
  for (const std::string& name : names) {
    parameters.push_back(module->attr(name).toTensor());
  }
  std::vector<at::Tensor> sums(names.size());
  std::vector<double> losses;
  for (const Batch& batch : batches) {
    const at::Tensor loss =
        at::cross_entropy_loss(module->forward({batch.x}).toTensor(), batch.target);
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
    const Batch batch = BatchOf(rows);
    BRAID_ASSERT_OK_AND_ASSIGN(const BatchResult result,
                               trained.ForwardBackward(batch.x, batch.target));
    ASSERT_THAT(trained.Update(0.5), IsOk());
    const std::vector<double> losses = ReferenceStep(&reference, {batch}, 0.5);
    EXPECT_NEAR(*result.loss, losses[0], kDouble);
    ExpectSameState(trained.State(), StateOf(reference), kDouble);
  }
}

TEST_P(OnWorkersTest, GradientsAccumulateOverBatchesOfAnySize) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{20, 1}, {1, 20}, {2, 97, 3}}) {
    TrainedModule trained(Mlp(), GetParam());
    torch::jit::Module reference = Mlp();
    for (int step = 0; step < 2; ++step) {  // the second starts from gradients that were cleared
      std::vector<Batch> batches;
      for (const int64_t rows : sizes) {
        batches.push_back(BatchOf(rows));
        ASSERT_THAT(trained.ForwardBackward(batches.back().x, batches.back().target), IsOk());
      }
      EXPECT_EQ(trained->accumulated(), static_cast<int64_t>(sizes.size()));
      ASSERT_THAT(trained.Update(0.5), IsOk());
      EXPECT_EQ(trained->accumulated(), 0);
      ReferenceStep(&reference, batches, 0.5);
    }
    ExpectSameState(trained.State(), StateOf(reference), kDouble);
  }
}

TEST_P(OnWorkersTest, ManyStepsStayWithTheReference) {
  TrainedModule trained(Mlp(), GetParam());
  torch::jit::Module reference = Mlp();
  for (int64_t step = 0; step < 50; ++step) {
    const Batch batch = BatchOf(20 + step % 3);
    ASSERT_THAT(trained.ForwardBackward(batch.x, batch.target), IsOk());
    ASSERT_THAT(trained.Update(0.1), IsOk());
    ReferenceStep(&reference, {batch}, 0.1);
  }
  ExpectSameState(trained.State(), StateOf(reference), 1e-10);
}

TEST_P(OnWorkersTest, TheSameAgainGivesTheSameBits) {
  const auto run = [] {
    TrainedModule trained(Mlp(), GetParam());
    for (int step = 0; step < 5; ++step) {
      EXPECT_THAT(trained.ForwardBackward(Inputs(97), Classes(97)), IsOk());
      EXPECT_THAT(trained.Update(0.3), IsOk());
    }
    return trained.State();
  };
  ExpectSameState(run(), run(), 0);
}

TEST_P(OnWorkersTest, ForwardGathersOutputsAndComputesTheLoss) {
  TrainedModule trained(Mlp(), GetParam());
  torch::jit::Module reference = Mlp();
  const Batch batch = BatchOf(7);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const BatchResult result,
      trained->Forward({ToHost(batch.x, "x")}, {ToHost(batch.target, "target")}, Mode::kTrain));
  const at::Tensor y = reference.forward({batch.x}).toTensor().detach();
  ASSERT_EQ(result.outputs.size(), 1);
  EXPECT_EQ(result.outputs[0].name, "y");
  EXPECT_TRUE(at::allclose(View(result.outputs[0]), y, kDouble, kDouble));
  EXPECT_NEAR(*result.loss, at::cross_entropy_loss(y, batch.target).item<double>(), kDouble);
  EXPECT_EQ(trained->accumulated(), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const BatchResult without, trained.Forward(batch.x, Mode::kEval));
  EXPECT_FALSE(without.loss.has_value());
}

TEST(DataParallelTest, SaysHowTheBatchWasSplit) {
  TrainedModule trained(Mlp(), 3);
  EXPECT_THAT(trained.ForwardBackward(Inputs(20), Classes(20))->split, ElementsAre(7, 7, 6));
  EXPECT_THAT(trained.Forward(Inputs(4), Mode::kEval)->split, ElementsAre(2, 2));
  EXPECT_EQ(trained.fleet().worker(2).samples(), 6);
}

TEST(DataParallelTest, AZeroDimOutputIsOneElementAChunk) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return (x @ self.w1).sum()\n");
  TrainedModule trained(module, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const BatchResult result, trained.Forward(Inputs(20), Mode::kEval));
  EXPECT_THAT(result.outputs[0].shape, ElementsAre(3));
}

// A loss of 0-dim outputs: its gradient is scattered element by element.
TEST(DataParallelTest, ZeroDimOutputsAreTrainedToo) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return (x @ self.w1).sum()\n");
  TrainedModule trained(module, 2, "mse");
  const at::Tensor x = Inputs(2);
  ASSERT_THAT(trained.ForwardBackward(x, at::zeros({2}, at::kDouble)), IsOk());
  ASSERT_THAT(trained.Update(0.1), IsOk());
  const at::Tensor w1 = TwoLayers().attr("w1").toTensor();
  const at::Tensor loss = at::mse_loss(at::matmul(x, w1).sum(1), at::zeros({2}, at::kDouble));
  const at::Tensor expected = w1.detach() - 0.1 * torch::autograd::grad({loss}, {w1})[0];
  EXPECT_TRUE(at::allclose(trained.State()["w1"], expected, kDouble, kDouble));
}

TEST(DataParallelTest, ABroadcastInputGoesWholeToEveryReplica) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, scale, x):\n  return (x @ self.w1) @ self.w2 * scale\n");
  ModelConfig config = TrainedConfig();
  config.inputs.insert(config.inputs.begin(), {"scale", DataType::kFp64, {4}, /*broadcast=*/true});
  const at::Tensor x = Inputs(5);
  HostTensor scale = MakeHost<double>("scale", {4}, {1, 2, 3, 4});
  scale.broadcast = true;
  std::vector<std::vector<double>> outputs;
  for (const int workers : {1, 3}) {
    TrainedModule trained(module, workers, config, "cross_entropy");
    BRAID_ASSERT_OK_AND_ASSIGN(const BatchResult result,
                               trained->Forward({scale, ToHost(x, "x")}, {}, Mode::kEval));
    EXPECT_EQ(result.split.front(), workers == 1 ? 5 : 2);
    outputs.push_back(ValuesOf<double>(result.outputs[0]));
  }
  EXPECT_THAT(outputs[1], ::testing::Pointwise(::testing::DoubleNear(kDouble), outputs[0]));
}

TEST(DataParallelTest, AModelThatIsNotBatchedCannotBeTrained) {
  const WorkerFleet fleet(1);
  ModelConfig config = TrainedConfig();
  config.max_batch_size = 0;
  LossSpec spec;
  spec.name = "mse";
  EXPECT_THAT(DataParallel::Create(config, *Loss::Create(spec, config), fleet.workers(),
                                   MakeReplicas(Mlp(), config, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_batch_size: 0")));
}

TEST(DataParallelTest, AModelWithoutTrainableParametersCannotBeTrained) {
  const WorkerFleet fleet(1);
  torch::jit::Module module = NewModule();
  module.define("def forward(self, x):\n  return x\n");
  LossSpec spec;
  spec.name = "mse";
  EXPECT_THAT(DataParallel::Create(TrainedConfig(), *Loss::Create(spec, TrainedConfig()),
                                   fleet.workers(), MakeReplicas(module, TrainedConfig(), 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no parameter")));
}

}  // namespace
}  // namespace braid
