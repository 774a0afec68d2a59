#include "server/models/torchscript_replica.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/GradMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Tensors = std::vector<at::Tensor>;

std::vector<TensorSpec> Output() { return {{"y", DataType::kFp32, {}}}; }

at::Tensor Trainable(double value) { return at::full({2}, value).requires_grad_(true); }

// y = x · w + b, b not used while evaluating; `count` counts the calls in training mode.
TorchScriptReplica Affine() {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", Trainable(3), /*is_buffer=*/false);
  module.register_parameter("b", Trainable(1), /*is_buffer=*/false);
  module.register_buffer("count", at::zeros({}));
  module.define(R"(
def forward(self, x):
  if self.training:
    self.count = self.count + 1
    return x * self.w + self.b
  else:
    return x * self.w
)");
  return TorchScriptReplica(module, {0}, Output());
}

TEST(TorchScriptReplicaTest, TheModeIsThatOfTheCall) {
  TorchScriptReplica replica = Affine();
  const at::Tensor x = at::full({1, 2}, 2.0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal((*replica.Forward({x}, Mode::kTrain))[0], at::full({1, 2}, 7.0)));
    EXPECT_TRUE(at::equal((*replica.Forward({x}, Mode::kEval))[0], at::full({1, 2}, 6.0)));
  }
}

TEST(TorchScriptReplicaTest, ForwardRecordsNoGraphWhateverTheThreadsMode) {
  TorchScriptReplica replica = Affine();
  const c10::AutoGradMode grad(true);
  EXPECT_FALSE((*replica.Forward({at::ones({1, 2})}, Mode::kTrain))[0].requires_grad());
}

TEST(TorchScriptReplicaTest, BackwardGivesTheParametersGradients) {
  TorchScriptReplica replica = Affine();
  const at::Tensor x = at::arange(6, at::kFloat).view({3, 2});
  const c10::AutoGradMode no_grad(false);  // as it is on a worker that serves
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors outputs, replica.ForwardForTraining({x}, Mode::kTrain));
  EXPECT_FALSE(outputs[0].requires_grad());
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors gradients, replica.Backward({at::ones({3, 2})}));
  ASSERT_EQ(gradients.size(), 2);
  EXPECT_TRUE(at::equal(gradients[0], x.sum(0)));
  EXPECT_TRUE(at::equal(gradients[1], at::full({2}, 3.0)));
}

TEST(TorchScriptReplicaTest, AParameterThatIsNotReachedHasNoGradient) {
  TorchScriptReplica replica = Affine();
  ASSERT_THAT(replica.ForwardForTraining({at::ones({3, 2})}, Mode::kEval), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors gradients, replica.Backward({at::ones({3, 2})}));
  EXPECT_TRUE(gradients[0].defined());
  EXPECT_FALSE(gradients[1].defined());
}

TEST(TorchScriptReplicaTest, WithoutAnOutputGradientNothingIsReached) {
  TorchScriptReplica replica = Affine();
  ASSERT_THAT(replica.ForwardForTraining({at::ones({3, 2})}, Mode::kTrain), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const Tensors gradients, replica.Backward({at::Tensor()}));
  ASSERT_EQ(gradients.size(), 2);
  EXPECT_FALSE(gradients[0].defined() || gradients[1].defined());
}

TEST(TorchScriptReplicaTest, ABoundParameterLivesInItsStorage) {
  TorchScriptReplica replica = Affine();
  const at::Tensor storage = at::full({2}, 3.0);
  replica.BindParameter(0, storage);
  storage.fill_(10);
  EXPECT_TRUE(
      at::equal((*replica.Forward({at::ones({1, 2})}, Mode::kEval))[0], at::full({1, 2}, 10.0)));
  ASSERT_THAT(replica.ForwardForTraining({at::ones({1, 2})}, Mode::kEval), IsOk());
  EXPECT_TRUE((*replica.Backward({at::ones({1, 2})}))[0].defined());
}

TEST(TorchScriptReplicaTest, BuffersAreThoseOfNow) {
  TorchScriptReplica replica = Affine();
  ASSERT_EQ(replica.buffers().size(), 1);
  ASSERT_THAT(replica.Forward({at::ones({1, 2})}, Mode::kTrain), IsOk());
  EXPECT_EQ(replica.buffers()[0].item<float>(), 1);  // the forward pass put another tensor there
}

// A module with a child, a frozen parameter and tied weights.
torch::jit::Module Family() {
  torch::jit::Module child("Child");
  child.register_attribute("training", c10::BoolType::get(), true);
  child.register_parameter("w", Trainable(1), false);
  child.register_buffer("mean", at::zeros({2}));
  child.define("def forward(self, x):\n  return x * self.w\n");
  torch::jit::Module module = NewModule();
  module.register_module("child", child);
  const at::Tensor tied = Trainable(2);
  module.register_parameter("a", tied, false);
  module.register_parameter("b", tied, false);
  module.register_parameter("frozen", at::ones({2}), false);
  module.define(
      "def forward(self, x):\n  return self.child.forward(x) * self.a * self.b * self.frozen\n");
  return module;
}

std::vector<std::string> ParameterNames(const Replica& replica) {
  std::vector<std::string> names;
  for (const Parameter& parameter : replica.parameters()) {
    names.push_back(parameter.name);
  }
  return names;
}

TEST(TorchScriptReplicaTest, TrainsWhatRequiresAGradientOnce) {
  const TorchScriptReplica replica(Family(), {0}, Output());
  EXPECT_THAT(ParameterNames(replica), ElementsAre("a", "child.w"));
}

TEST(TorchScriptReplicaTest, StateIsTheStateDict) {
  const TorchScriptReplica replica(Family(), {0}, Output());
  std::vector<std::pair<std::string, bool>> entries;
  for (const StateEntry& entry : replica.state()) {
    entries.emplace_back(entry.name, entry.is_parameter);
    EXPECT_FALSE(entry.value.requires_grad());
  }
  EXPECT_THAT(entries, ElementsAre(Pair("a", true), Pair("b", true), Pair("frozen", true),
                                   Pair("child.w", true), Pair("child.mean", false)));
}

TEST(TorchScriptReplicaTest, ACloneIsACopyOfItsOwn) {
  TorchScriptReplica replica(Family(), {0}, Output());
  const std::unique_ptr<Replica> clone = replica.Clone();
  EXPECT_EQ(ParameterNames(*clone), ParameterNames(replica));  // ties and frozen ones kept
  const at::Tensor x = at::ones({1, 2});
  EXPECT_TRUE(at::equal((*clone->Forward({x}, Mode::kEval))[0], at::full({1, 2}, 4.0)));
  const at::Tensor storage = at::full({2}, 5.0);
  replica.BindParameter(1, storage);
  replica.buffers()[0].fill_(9);
  EXPECT_TRUE(at::equal((*clone->Forward({x}, Mode::kEval))[0], at::full({1, 2}, 4.0)));
  EXPECT_EQ(clone->buffers()[0].sum().item<float>(), 0);
  ASSERT_THAT(clone->ForwardForTraining({x}, Mode::kTrain), IsOk());
  EXPECT_TRUE((*clone->Backward({at::ones({1, 2})}))[1].defined());
}

TEST(TorchScriptReplicaTest, InputsAndOutputsGoByTheirOrder) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, a, b):\n  return a - b, b\n");
  TorchScriptReplica replica(module, {1, 0},
                             {{"y__1", DataType::kFp32, {}}, {"y__0", DataType::kFp32, {}}});
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Tensors outputs,
      replica.Forward({at::full({1}, 2.0), at::full({1}, 5.0)}, Mode::kEval));
  EXPECT_EQ(outputs[0].item<float>(), 2);
  EXPECT_EQ(outputs[1].item<float>(), 3);
}

TEST(TorchScriptReplicaTest, AnOutputOfAnotherDatatypeIsRefused) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, x):\n  return x.double()\n");
  TorchScriptReplica replica(module, {0}, Output());
  EXPECT_THAT(replica.Forward({at::ones({1})}, Mode::kEval),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr("'y'")));
}

}  // namespace
}  // namespace braid
