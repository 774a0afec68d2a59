// Tests the effects of a step on buffers and on parameters without a gradient, and that a failed
// step has none.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/training/step/data_parallel.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// Batch norm of momentum 1 (rule: the running statistics are the primary's chunk's), a call
// counter, and an error for a chunk that holds a number above 100.
torch::jit::Module Stateful() {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("mean", at::zeros({3}, at::kDouble));
  module.register_buffer("var", at::ones({3}, at::kDouble));
  module.register_buffer("calls", at::zeros({}, at::kLong));
  module.define(R"(
def forward(self, x):
  if self.training:
    self.calls.add_(1)
  n = torch.batch_norm(x, None, None, self.mean, self.var, self.training, 1.0, 1e-5, False)
  assert bool((x <= 100).all()), "a number is too large"
  return torch.tanh(n @ self.w1 + self.b1) @ self.w2
)");
  return module;
}

// The batch whose last row makes the model fail: on another replica than the primary.
at::Tensor BadInputs(int64_t rows) {
  const at::Tensor x = Inputs(rows);
  x[rows - 1].fill_(1000);
  return x;
}

TEST(DataParallelBuffersTest, AreThoseOfThePrimarysChunk) {
  for (const int workers : {1, 2, 3}) {
    TrainedModule trained(Stateful(), workers);
    const at::Tensor x = Inputs(20) * at::arange(20, at::kDouble).unsqueeze(1);
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                               trained.ForwardBackward(x, Classes(20)));
    const at::Tensor chunk = x.narrow(0, 0, result.chunks[0].rows);
    State state = trained.state();
    EXPECT_TRUE(at::allclose(state["mean"], chunk.mean(0), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(state["var"], chunk.var(0), 1e-12, 1e-12));
    EXPECT_EQ(state["calls"].item<int64_t>(), 1);
  }
}

TEST(DataParallelBuffersTest, EveryReplicaStartsFromThePrimarys) {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("calls", at::zeros({}, at::kDouble));
  module.define(R"(
def forward(self, x):
  self.calls = self.calls + x[0, 0]
  return (x @ self.w1) @ self.w2 * 0 + self.calls
)");
  TrainedModule trained(module, 2);
  at::Tensor x = at::ones({4, 3}, at::kDouble);
  x.narrow(0, 2, 2).fill_(10);  // the second replica's chunk
  ASSERT_THAT(trained.Forward(x, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Forward(x, Mode::kTrain));
  const at::Tensor y = View(result.outputs[0]).select(1, 0);
  EXPECT_TRUE(at::equal(y, at::tensor({2.0, 2.0, 11.0, 11.0}, at::kDouble)));
}

TEST(DataParallelBuffersTest, EvaluationChangesNone) {
  TrainedModule trained(Stateful(), 2);
  ASSERT_THAT(trained.ForwardBackward(Inputs(20), Classes(20)), IsOk());
  const State before = trained.state();
  ASSERT_THAT(trained.Forward(Inputs(9) + 1, Mode::kEval), IsOk());
  ExpectSameState(trained.state(), before, 0);
  ASSERT_THAT(trained.Forward(Inputs(9) + 1, Mode::kTrain), IsOk());
  EXPECT_FALSE(at::equal(trained.state()["mean"], before.at("mean")));
}

// Fails in `fail`, between two good batches; the rest has to be as if it had not been asked for.
template <typename Fail>
void ExpectUnchangedBy(int workers, Fail fail) {
  TrainedModule trained(Stateful(), workers);
  TrainedModule spared(Stateful(), workers);
  for (TrainedModule* model : {&trained, &spared}) {
    ASSERT_THAT(model->ForwardBackward(Inputs(20), Classes(20)), IsOk());
  }
  const State before = trained.state();
  const absl::Status status = fail(&trained);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  ExpectSameState(trained.state(), before, 0);
  EXPECT_EQ(trained->accumulated(), 1);
  for (TrainedModule* model : {&trained, &spared}) {
    ASSERT_THAT(model->ForwardBackward(Inputs(9), Classes(9)), IsOk());
    ASSERT_THAT(model->Update(), IsOk());
  }
  ExpectSameState(trained.state(), spared.state(), 0);
}

TEST(DataParallelFailureTest, AReplicaThatFailsChangesNothing) {
  for (const int workers : {1, 2, 4}) {
    ExpectUnchangedBy(workers, [](TrainedModule* trained) {
      const absl::Status status = trained->ForwardBackward(BadInputs(20), Classes(20)).status();
      EXPECT_THAT(std::string(status.message()), HasSubstr("a number is too large"));
      return status;
    });
    ExpectUnchangedBy(workers, [](TrainedModule* trained) {
      return trained->Forward(BadInputs(20), Mode::kTrain).status();
    });
  }
}

TEST(DataParallelFailureTest, ABadTargetChangesNothing) {
  for (const int workers : {1, 3}) {
    ExpectUnchangedBy(workers, [](TrainedModule* trained) {
      return trained->ForwardBackward(Inputs(20), Classes(20) + 4).status();
    });
    ExpectUnchangedBy(workers, [](TrainedModule* trained) {
      return trained->Step(Inputs(20), Classes(20) - 1).status();
    });
  }
}

TEST(DataParallelFailureTest, AFailedFirstBatchChangesNothing) {
  TrainedModule trained(Stateful(), 2);
  TrainedModule spared(Stateful(), 2);
  EXPECT_FALSE(trained.ForwardBackward(BadInputs(20), Classes(20)).ok());
  EXPECT_EQ(trained->accumulated(), 0);
  for (TrainedModule* model : {&trained, &spared}) {
    ASSERT_THAT(model->ForwardBackward(Inputs(3), Classes(3)), IsOk());
    ASSERT_THAT(model->Update(), IsOk());
  }
  ExpectSameState(trained.state(), spared.state(), 0);
}

TEST(DataParallelFailureTest, RejectsABufferThatChangesItsShape) {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("last", at::zeros({1}, at::kDouble));
  module.define(R"(
def forward(self, x):
  self.last = x.sum(1)
  return (x @ self.w1) @ self.w2
)");
  TrainedModule trained(module, 1);
  EXPECT_FALSE(trained.ForwardBackward(Inputs(5), Classes(5)).ok());
  EXPECT_TRUE(at::equal(trained.state()["last"], at::zeros({1}, at::kDouble)));
}

TEST(DataParallelBuffersTest, ABufferOutlivesTheRequestThatItCameFrom) {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("last", at::zeros({2, 3}, at::kDouble));
  module.define(R"(
def forward(self, x):
  self.last = x
  return (x @ self.w1) @ self.w2
)");
  TrainedModule trained(module, 1);
  const at::Tensor request = Inputs(2);
  ASSERT_THAT(trained.Forward(request, Mode::kTrain), IsOk());
  request.fill_(77);  // its memory is somebody else's now
  EXPECT_TRUE(at::equal(trained.state()["last"], Inputs(2)));
}

// w2 counts only for a chunk whose first number is positive.
torch::jit::Module Branching() {
  torch::jit::Module module = TwoLayers();
  module.define(R"(
def forward(self, x):
  h = x @ self.w1
  if bool(x[0, 0] > 0):
    return h @ self.w2
  return h[:, :4]
)");
  return module;
}

TEST(DataParallelReachTest, DoesNotUpdateAParameterWithoutGradient) {
  TrainedModule trained(Branching(), 2, TrainedSpec(SgdSpec{.lr = 0.5, .weight_decay = 0.5}));
  const State before = trained.state();
  ASSERT_THAT(trained.Step(-at::ones({4, 3}, at::kDouble), Classes(4)), IsOk());
  State after = trained.state();
  EXPECT_TRUE(at::equal(after["w2"], before.at("w2")));
  EXPECT_TRUE(at::equal(after["b1"], before.at("b1")));
  EXPECT_FALSE(at::equal(after["w1"], before.at("w1")));
}

TEST(DataParallelReachTest, UpdatesAParameterWithAGradientOnSomeReplicas) {
  TrainedModule trained(Branching(), 2);
  const State before = trained.state();
  const at::Tensor x = -at::ones({4, 3}, at::kDouble);
  x.narrow(0, 2, 2).fill_(1);  // the second replica's chunk
  ASSERT_THAT(trained.ForwardBackward(x, Classes(4)), IsOk());
  ASSERT_THAT(trained.Update(), IsOk());
  EXPECT_FALSE(at::equal(trained.state()["w2"], before.at("w2")));
}

}  // namespace
}  // namespace braid
