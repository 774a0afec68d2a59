// Tests updates with clipping and groups, for several numbers of replicas.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr double kDouble = 1e-12;  // as exact as float64 sums in another order are

// The gradients of Mlp()'s parameters, by name, for a batch of `rows`.
State ReferenceGradients(int64_t rows) {
  torch::jit::Module module = Mlp();
  const std::vector<std::string> names = {"w1", "b1", "w2"};
  std::vector<at::Tensor> parameters;
  for (const std::string& name : names) {
    parameters.push_back(module.attr(name).toTensor());
  }
  const at::Tensor loss =
      at::cross_entropy_loss(module.forward({Inputs(rows)}).toTensor(), Classes(rows));
  const auto gradients = torch::autograd::grad({loss}, parameters);
  State by_name;
  for (size_t p = 0; p < names.size(); ++p) {
    by_name[names[p]] = gradients[p];
  }
  return by_name;
}

// Mlp()'s parameters after p -= lr * change(p).
State Moved(const State& change, double lr) {
  State state;
  for (const auto& [name, by] : change) {
    state[name] = Mlp().attr(name).toTensor().detach() - lr * by;
  }
  return state;
}

class UpdateTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, UpdateTest, ::testing::Values(1, 2, 3, 4));

TEST_P(UpdateTest, GradientsAreClippedByTheirNormAndThenByValue) {
  State gradients = ReferenceGradients(7);
  double squares = 0;
  for (const auto& [name, gradient] : gradients) {
    squares += gradient.square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  for (auto& [name, gradient] : gradients) {
    gradient = (gradient * (norm / 2 / (norm + 1e-6))).clamp(-norm / 20, norm / 20);
  }
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.5});
  spec.clipping = {.max_norm = norm / 2, .max_value = norm / 20};
  TrainedModule trained(Mlp(), GetParam(), spec);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Step(Inputs(7), Classes(7)));
  EXPECT_NEAR(*result.gradient_norm, norm, kDouble);
  ExpectSameState(trained.state(), Moved(gradients, 0.5), kDouble);
}

TEST_P(UpdateTest, AnInfiniteNormIsTheLargestGradients) {
  State gradients = ReferenceGradients(7);
  double norm = 0;
  for (const auto& [name, gradient] : gradients) {
    norm = std::max(norm, gradient.abs().max().item<double>());
  }
  for (auto& [name, gradient] : gradients) {
    gradient = gradient * (norm / 3 / (norm + 1e-6));
  }
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.5});
  spec.clipping = {.max_norm = norm / 3, .norm_type = std::numeric_limits<double>::infinity()};
  TrainedModule trained(Mlp(), GetParam(), spec);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Step(Inputs(7), Classes(7)));
  EXPECT_NEAR(*result.gradient_norm, norm, kDouble);
  ExpectSameState(trained.state(), Moved(gradients, 0.5), kDouble);
}

// Accumulated gradients are clipped together; small ones are not.
TEST_P(UpdateTest, TheNormIsThatOfAllThatHasAccumulated) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.5});
  spec.clipping = {.max_norm = 1e9};
  TrainedModule trained(Mlp(), GetParam(), spec);
  State sum = ReferenceGradients(7);
  for (const auto& [name, gradient] : ReferenceGradients(3)) {
    sum[name] = sum[name] + gradient;
  }
  double squares = 0;
  for (const auto& [name, gradient] : sum) {
    squares += gradient.square().sum().item<double>();
  }
  ASSERT_THAT(trained.ForwardBackward(Inputs(7), Classes(7)), IsOk());
  ASSERT_THAT(trained.ForwardBackward(Inputs(3), Classes(3)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Update());
  EXPECT_NEAR(*result.gradient_norm, std::sqrt(squares), kDouble);
  ExpectSameState(trained.state(), Moved(sum, 0.5), kDouble);
}

TEST_P(UpdateTest, GroupsHaveTheirOwnRates) {
  State gradients = ReferenceGradients(7);
  gradients["b1"] = gradients["b1"] * 3;
  gradients["w2"] = gradients["w2"] + 0.1 * Mlp().attr("w2").toTensor().detach();
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.5});
  spec.groups = {{.pattern = "^b", .lr = 1.5}, {.pattern = "2$", .weight_decay = 0.1}};
  TrainedModule trained(Mlp(), GetParam(), spec);
  ASSERT_THAT(trained.Step(Inputs(7), Classes(7)), IsOk());
  ExpectSameState(trained.state(), Moved(gradients, 0.5), kDouble);
}

TEST_P(UpdateTest, AFrozenGroupStaysAsItIs) {
  State gradients = ReferenceGradients(7);
  gradients["w1"] = at::zeros({3, 5}, at::kDouble);
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.5, .weight_decay = 0});
  spec.groups = {{.pattern = "^w1$", .frozen = true}};
  double squares = 0;
  for (const auto& [name, gradient] : gradients) {
    squares += gradient.square().sum().item<double>();
  }
  spec.clipping.max_norm = 1e9;
  TrainedModule trained(Mlp(), GetParam(), spec);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Step(Inputs(7), Classes(7)));
  EXPECT_NEAR(*result.gradient_norm, std::sqrt(squares), kDouble);
  ExpectSameState(trained.state(), Moved(gradients, 0.5), kDouble);
}

// Frozen by a group or when the model was exported.
TEST(FrozenTest, FrozenParametersTakeNoMemory) {
  const auto bytes_of = [](const char* name) {
    return static_cast<int64_t>(Mlp().attr(name).toTensor().nbytes());
  };
  constexpr int64_t kPadding = 64;  // at most, of each parameter and copy
  for (const bool in_group : {true, false}) {
    torch::jit::Module module = Mlp();
    TrainerSpec spec = TrainedSpec(AdamSpec{});
    if (in_group) {
      spec.groups = {{.pattern = "^[wb]1$", .frozen = true}};
    } else {
      module.attr("w1").toTensor().set_requires_grad(false);
      module.attr("b1").toTensor().set_requires_grad(false);
    }
    TrainedModule trained(module, 2, spec);
    ASSERT_THAT(trained.Step(Inputs(8), Classes(8)), IsOk());
    const std::vector<DeviceMemory> memory = trained->memory();
    ASSERT_EQ(memory.size(), 2);
    // "w2", its gradient and Adam's two averages.
    const int64_t least = 4 * bytes_of("w2");
    EXPECT_GE(memory[0].current, least);
    EXPECT_LE(memory[0].current, least + 6 * kPadding);
    ExpectSameState({{"w1", trained.state()["w1"]}, {"b1", trained.state()["b1"]}},
                    {{"w1", Mlp().attr("w1").toTensor()}, {"b1", Mlp().attr("b1").toTensor()}}, 0);
    BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<StateTensor> trained_state,
                               trained->State(/*trained_only=*/true));
    ASSERT_EQ(trained_state.size(), 1);
    EXPECT_EQ(trained_state[0].tensor.name, "w2");
  }
}

TEST(FrozenTest, NotEverythingMayBeFrozen) {
  TrainerSpec spec = TrainedSpec();
  spec.groups = {{.pattern = ".", .frozen = true}};
  EXPECT_THAT(TrainedModule(Mlp(), 2, spec).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("frozen")));
}

// Indices INT64 [B, 2] of an embedding [6, 4]: y is the sum of the rows.
torch::jit::Module Embedding(bool sparse) {
  torch::jit::Module module = NewModule();
  module.register_parameter("table", Weights({6, 4}, 0.9), /*is_buffer=*/false);
  module.register_parameter("bias", Weights({4}, 0.4), /*is_buffer=*/false);
  module.define(std::string("def forward(self, x):\n  return torch.embedding(self.table, x, -1, "
                            "False, ") +
                (sparse ? "True" : "False") + ").sum(1) + self.bias\n");
  return module;
}

TEST_P(UpdateTest, SparseGradientsAreTheDenseOnes) {
  ModelConfig config = TrainedConfig();
  config.inputs[0] = {"x", DataType::kInt64, {2}};
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.1});
  spec.clipping.max_norm = 0.5;
  TrainedModule sparse(Embedding(true), GetParam(), spec, config);
  TrainedModule dense(Embedding(false), 1, spec, config);
  for (const int64_t rows : {7, 1, 20}) {
    const at::Tensor x = at::arange(2 * rows).remainder(5).view({rows, 2});
    for (TrainedModule* model : {&sparse, &dense}) {
      ASSERT_THAT(model->ForwardBackward(x, Classes(rows)), IsOk());
      ASSERT_THAT(model->ForwardBackward(x + 1, Classes(rows)), IsOk());
      ASSERT_THAT(model->Step(x, Classes(rows)), IsOk());
    }
  }
  ExpectSameState(sparse.state(), dense.state(), kDouble);
}

}  // namespace
}  // namespace braid
