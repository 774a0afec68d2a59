// Tests models whose results depend on the rows of a chunk: batch norm and random numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/staged_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr double kDouble = 1e-11;  // statistics of a few rows divide by their spread

// Batch norm before and between the layers.
torch::jit::Module Normed() {
  torch::jit::Module module = TwoLayers();
  for (const auto& [name, channels] : {std::pair("1", 3), std::pair("2", 5)}) {
    module.register_parameter(std::string("g") + name, Weights({channels}, 0.6), false);
    module.register_parameter(std::string("h") + name, Weights({channels}, 0.8), false);
    module.register_buffer(std::string("mean") + name, at::zeros({channels}, at::kDouble));
    module.register_buffer(std::string("var") + name, at::ones({channels}, at::kDouble));
  }
  module.define(R"(
def norm1(self, x):
  return torch.batch_norm(x, self.g1, self.h1, self.mean1, self.var1, self.training, 0.3, 1e-5, False)

def norm2(self, x):
  return torch.batch_norm(x, self.g2, self.h2, self.mean2, self.var2, self.training, 0.3, 1e-5, False)

def forward(self, x):
  return self.norm2(torch.tanh(self.norm1(x) @ self.w1 + self.b1)) @ self.w2
)");
  return module;
}

TrainerSpec Synced(LossMode mode = LossMode::kCentral) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1, .momentum = 0.9});
  spec.sync_batch_norm = true;
  spec.loss_mode = mode;
  return spec;
}

class ChunkedModelTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, ChunkedModelTest, ::testing::Values(1, 2, 3, 4));

// 3 rows on 2 replicas are 2 and 1; 4 on 4 are one each; 2 leave some without any.
TEST_P(ChunkedModelTest, SyncedBatchNormIsThatOfTheWholeBatch) {
  for (const LossMode mode : {LossMode::kCentral, LossMode::kPerReplica}) {
    TrainedModule trained(Normed(), GetParam(), Synced(mode));
    TrainedModule whole(Normed(), 1, TrainedSpec(SgdSpec{.lr = 0.1, .momentum = 0.9}));
    for (const int64_t rows : {20, 3, 4, 7, 2}) {
      const at::Tensor x = Inputs(rows + 1).narrow(0, 1, rows);
      BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours, trained.Step(x, Classes(rows)));
      BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs, whole.Step(x, Classes(rows)));
      EXPECT_NEAR(*ours.loss, *theirs.loss, kDouble);
    }
    ExpectSameState(trained.state(), whole.state(), kDouble);
    BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult ours,
                               trained.Evaluate(Inputs(5), Classes(5)));
    BRAID_ASSERT_OK_AND_ASSIGN(const EvaluationResult theirs,
                               whole.Evaluate(Inputs(5), Classes(5)));
    EXPECT_NEAR(*ours.loss, *theirs.loss, kDouble);
  }
}

TEST(BatchNormTest, WithoutItAChunkIsNormalizedByItself) {
  TrainedModule trained(Normed(), 2, TrainedSpec(SgdSpec{.lr = 0.1}));
  TrainedModule whole(Normed(), 1, TrainedSpec(SgdSpec{.lr = 0.1}));
  const double ours = *trained.Step(Inputs(20), Classes(20))->loss;
  EXPECT_GT(std::abs(ours - *whole.Step(Inputs(20), Classes(20))->loss), 1e-3);
}

// A chunk that no loss counts has rows that the others' statistics are made of.
TEST_P(ChunkedModelTest, AChunkThatDoesNotCountIsNormalizedWithTheOthers) {
  at::Tensor targets = Classes(8);
  targets.narrow(0, 2, 2).fill_(-1);
  TrainerSpec spec = Synced(LossMode::kPerReplica);
  spec.losses[0].ignore_index = -1;
  TrainerSpec one = spec;
  one.sync_batch_norm = false;
  TrainedModule trained(Normed(), GetParam(), spec);
  TrainedModule whole(Normed(), 1, one);
  for (int step = 0; step < 2; ++step) {
    ASSERT_THAT(trained.Step(Inputs(8), targets), IsOk());
    ASSERT_THAT(whole.Step(Inputs(8), targets), IsOk());
  }
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

TEST(BatchNormTest, SyncsWithinEachStage) {
  torch::jit::Module second = Part("Second", 5, 4);
  second.register_buffer("mean", at::zeros({5}, at::kDouble));
  second.register_buffer("var", at::ones({5}, at::kDouble));
  second.define(R"(
def forward(self, x):
  n = torch.batch_norm(x, None, None, self.mean, self.var, self.training, 0.3, 1e-5, False)
  return torch.tanh(n @ self.w + self.b)
)");
  const torch::jit::Module module = Chain({{"first", TanhPart("First", 3, 5)}, {"second", second}});
  TrainerSpec spec = Synced();
  spec.stages = {{"first", {"cpu:0", "cpu:1"}}, {"second", {"cpu:2", "cpu:1", "cpu:0"}}};
  TrainedModule trained(module, 3, spec);
  TrainedModule whole(module, 1, TrainedSpec(SgdSpec{.lr = 0.1, .momentum = 0.9}));
  for (const int64_t rows : {7, 4}) {
    ASSERT_THAT(trained.Step(Inputs(rows), Classes(rows)), IsOk());
    ASSERT_THAT(whole.Step(Inputs(rows), Classes(rows)), IsOk());
  }
  ExpectSameState(trained.state(), whole.state(), kDouble);
}

// Replicas that do not come to the same layers would wait for each other forever.
TEST(BatchNormTest, ReplicasThatTakeDifferentWaysFail) {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("mean", at::zeros({3}, at::kDouble));
  module.register_buffer("var", at::ones({3}, at::kDouble));
  module.define(R"(
def forward(self, x):
  if bool(x[0, 0] > 0):
    x = torch.batch_norm(x, None, None, self.mean, self.var, self.training, 0.3, 1e-5, False)
  return torch.tanh(x @ self.w1 + self.b1) @ self.w2
)");
  TrainedModule trained(module, 2, Synced());
  const State before = trained.state();
  const at::Tensor x = Inputs(4).abs();
  x.narrow(0, 2, 2).neg_();
  EXPECT_THAT(trained.Step(x, Classes(4)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("synchronized batch norm")));
  ExpectSameState(trained.state(), before, 0);
  EXPECT_THAT(trained.Step(x.abs(), Classes(4)), IsOk());
}

torch::jit::Module Dropping() {
  torch::jit::Module module = TwoLayers();
  module.define(R"(
def forward(self, x):
  h = torch.dropout(torch.tanh(x @ self.w1 + self.b1), 0.5, self.training)
  return h @ self.w2
)");
  return module;
}

TrainerSpec Seeded(uint64_t seed) {
  TrainerSpec spec = TrainedSpec();
  spec.seed = seed;
  return spec;
}

TEST_P(ChunkedModelTest, DropoutRepeatsForASeed) {
  const auto run = [](uint64_t seed) {
    TrainedModule trained(Dropping(), GetParam(), Seeded(seed));
    for (int step = 0; step < 3; ++step) {
      EXPECT_THAT(trained.ForwardBackward(Inputs(20), Classes(20)), IsOk());
      EXPECT_THAT(trained.Step(Inputs(7), Classes(7)), IsOk());
    }
    return trained.state();
  };
  const State once = run(1);
  ExpectSameState(run(1), once, 0);
  EXPECT_FALSE(at::equal(run(2)["w1"], once.at("w1")));
}

// Returns which elements dropout has dropped, for equal rows.
at::Tensor Kept(TrainedModule* trained, int64_t rows, Mode mode) {
  const auto result = trained->Forward(at::ones({rows, 3}, at::kDouble), mode);
  EXPECT_THAT(result, IsOk());
  return View(result->outputs[0]).clone();
}

TEST_P(ChunkedModelTest, EachRowAndEachOperationDropsOthers) {
  torch::jit::Module module = TwoLayers();
  module.define(
      "def forward(self, x):\n  return torch.dropout(x @ self.w1 * 0 + 1, 0.5, "
      "self.training)[:, :4]\n");
  TrainedModule trained(module, GetParam(), Seeded(3));
  const at::Tensor first = Kept(&trained, 64, Mode::kTrain);
  EXPECT_FALSE(at::equal(Kept(&trained, 64, Mode::kTrain), first));
  for (int64_t chunk = 1; chunk < GetParam(); ++chunk) {
    const int64_t rows = (64 + GetParam() - 1) / GetParam();
    const int64_t size = std::min<int64_t>(rows, 64 - chunk * rows);
    EXPECT_FALSE(at::equal(first.narrow(0, chunk * rows, size), first.narrow(0, 0, size)));
  }
  EXPECT_TRUE(at::equal(Kept(&trained, 64, Mode::kEval), at::ones({64, 4}, at::kDouble)));
}

}  // namespace
}  // namespace braid
