// A batch that is not finite is skipped, or fails the operation, and changes nothing.
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// Counts its calls. A row of zeros makes a gradient that is no number, of a loss that is one.
torch::jit::Module Fragile() {
  torch::jit::Module module = TwoLayers();
  module.register_buffer("calls", at::zeros({}, at::kDouble));
  module.define(R"(
def forward(self, x):
  self.calls.add_(1)
  root = torch.sqrt(x.abs().sum(1).unsqueeze(1) * self.b1[1] * self.b1[1])
  return torch.tanh(x @ self.w1 + self.b1) @ self.w2 + root
)");
  return module;
}

// Seven rows; the last is on another replica than the primary.
at::Tensor WithLastRow(double value) {
  const at::Tensor x = Inputs(7);
  x[6].fill_(value);
  return x;
}
at::Tensor BadLoss() { return WithLastRow(std::numeric_limits<double>::quiet_NaN()); }
at::Tensor BadGradient() { return WithLastRow(0); }

TrainerSpec SpecOf(NonFinitePolicy policy, SyncMode sync, int64_t micro_batch) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.3, .momentum = 0.9});
  spec.non_finite = policy;
  spec.sync = sync;
  spec.micro_batch = micro_batch;
  return spec;
}

// Every way in which gradients are kept apart until they count.
struct Way {
  int workers;
  int64_t micro_batch;
  int accumulated;  // batches before the bad one

  friend std::ostream& operator<<(std::ostream& out, const Way& way) {
    return out << way.workers << " workers, micro_batch " << way.micro_batch << ", after "
               << way.accumulated;
  }
};

class NonFiniteTest : public ::testing::TestWithParam<Way> {
 protected:
  // Both take good steps, one of them also what `bad` does; they must not come to differ.
  template <typename Bad>
  void ExpectUnchangedBy(NonFinitePolicy policy, Bad bad) {
    for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce}) {
      const TrainerSpec spec = SpecOf(policy, sync, GetParam().micro_batch);
      TrainedModule trained(Fragile(), GetParam().workers, spec);
      TrainedModule spared(Fragile(), GetParam().workers, spec);
      for (TrainedModule* model : {&trained, &spared}) {
        ASSERT_THAT(model->Step(Inputs(5), Classes(5)), IsOk());
        for (int b = 0; b < GetParam().accumulated; ++b) {
          ASSERT_THAT(model->ForwardBackward(Inputs(4), Classes(4)), IsOk());
        }
      }
      bad(&trained);
      EXPECT_EQ(trained->accumulated(), GetParam().accumulated);
      ExpectSameState(trained.state(), spared.state(), 0);
      for (TrainedModule* model : {&trained, &spared}) {
        ASSERT_THAT(model->Step(Inputs(7), Classes(7)), IsOk());
        ASSERT_THAT(model->Step(Inputs(2), Classes(2)), IsOk());
      }
      ExpectSameState(trained.state(), spared.state(), 0);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, NonFiniteTest,
                         ::testing::Values(Way{1, 0, 0}, Way{2, 0, 0}, Way{2, 0, 1}, Way{3, 0, 2},
                                           Way{2, 2, 0}, Way{2, 2, 1}));

TEST_P(NonFiniteTest, AnOperationThatFailsChangesNothing) {
  ExpectUnchangedBy(NonFinitePolicy::kFail, [](TrainedModule* trained) {
    const auto failed = [](const char* what) {
      return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
    };
    EXPECT_THAT(trained->Step(BadLoss(), Classes(7)), failed("the loss (nan)"));
    EXPECT_THAT(trained->Step(BadGradient(), Classes(7)), failed("a gradient"));
    EXPECT_THAT(trained->ForwardBackward(BadLoss(), Classes(7)), failed("the loss"));
    EXPECT_THAT(trained->ForwardBackward(BadGradient(), Classes(7)), failed("a gradient"));
  });
}

TEST_P(NonFiniteTest, ABatchThatIsSkippedChangesNothing) {
  ExpectUnchangedBy(NonFinitePolicy::kSkip, [](TrainedModule* trained) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult loss, trained->Step(BadLoss(), Classes(7)));
    EXPECT_TRUE(loss.skipped);
    EXPECT_FALSE(loss.updated);
    EXPECT_TRUE(std::isnan(*loss.loss));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult gradient,
                               trained->Step(BadGradient(), Classes(7)));
    EXPECT_TRUE(gradient.skipped);
    EXPECT_TRUE(std::isfinite(*gradient.loss));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                               trained->ForwardBackward(BadGradient(), Classes(7)));
    EXPECT_TRUE(half.skipped);
  });
}

TEST(NonFiniteClientTest, GradientsThatTheClientSendsAreLookedAt) {
  for (const NonFinitePolicy policy : {NonFinitePolicy::kFail, NonFinitePolicy::kSkip}) {
    TrainerSpec spec = SpecOf(policy, SyncMode::kAuto, 0);
    spec.losses.clear();
    spec.loss_mode = LossMode::kClient;
    TrainedModule trained(Mlp(), 2, spec);
    at::Tensor gradient = at::ones({5, 4}, at::kDouble);
    ASSERT_THAT(trained.Forward(Inputs(5), Mode::kTrain, /*keep_graph=*/true), IsOk());
    ASSERT_THAT(trained->Backward({ToHost(gradient, "y")}), IsOk());
    gradient[4].fill_(std::numeric_limits<double>::infinity());
    ASSERT_THAT(trained.Forward(Inputs(5), Mode::kTrain, /*keep_graph=*/true), IsOk());
    const auto result = trained->Backward({ToHost(gradient, "y")});
    if (policy == NonFinitePolicy::kFail) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("output_gradients[0] is not finite")));
      EXPECT_TRUE(trained->keeps_graph());
    } else {
      ASSERT_THAT(result, IsOk());
      EXPECT_TRUE(result->skipped);
    }
    EXPECT_EQ(trained->accumulated(), 1);
  }
}

// y = x · w, whose gradient by l1 loss is minus the sum of the rows.
torch::jit::Module RowSum() {
  torch::jit::Module module = NewModule();
  module.register_parameter("w", at::zeros({3, 4}, at::kDouble).requires_grad_(true),
                            /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return x @ self.w\n");
  return module;
}

// Each replica's gradient is finite, as is any of them; their sum is not, nor one over two batches.
TEST(NonFiniteSumTest, WhatWouldBeAppliedIsLookedAt) {
  for (const int workers : {1, 2, 3}) {
    for (const SyncMode sync : {SyncMode::kReduceBroadcast, SyncMode::kAllReduce}) {
      TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 1e-300}, "l1");
      spec.losses[0].reduction = Reduction::kSum;
      spec.sync = sync;
      TrainedModule trained(RowSum(), workers, spec);
      const at::Tensor target = at::ones({3, 4}, at::kDouble);
      const auto refused =
          StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a gradient is not finite"));
      const State before = trained.state();
      EXPECT_THAT(trained.Step(at::full({3, 3}, 1e308, at::kDouble), target), refused);
      ExpectSameState(trained.state(), before, 0);
      // Large, and some of them cancel: all that counts is the sum.
      at::Tensor signs = at::tensor({1.0, -1.0, 1.0}, at::kDouble).unsqueeze(1);
      ASSERT_THAT(trained.Step(signs * at::full({3, 3}, 1.2e308, at::kDouble), target), IsOk());
      EXPECT_NEAR(trained.state().at("w")[0][0].item<double>(), 1.2e8, 1);
      const at::Tensor half = at::full({3, 3}, 0.5e308, at::kDouble);
      TrainedModule accumulating(RowSum(), workers, spec);
      ASSERT_THAT(accumulating.ForwardBackward(half, target), IsOk());
      EXPECT_THAT(accumulating.ForwardBackward(half, target), refused);
      EXPECT_EQ(accumulating->accumulated(), 1);
      EXPECT_THAT(accumulating.Update(), IsOk());
      EXPECT_NEAR(accumulating.state().at("w")[0][0].item<double>(), 1.5e8, 1);
    }
  }
}

// Configures float32 inputs, which autocast converts to float16.
ModelConfig HalfConfig() {
  ModelConfig config = TrainedConfig();
  config.inputs[0].type = DataType::kFp32;
  config.outputs[0].type = DataType::kFp32;
  return config;
}
torch::jit::Module FloatMlp() {
  torch::jit::Module module = Mlp();
  module.to(at::kFloat);
  return module;
}
at::Tensor FloatInputs(int64_t rows) { return Inputs(rows).to(at::kFloat); }

class Float16Test : public ::testing::TestWithParam<int> {
 protected:
  TrainedModule Make(GradScalerSpec scaler) const {
    TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
    spec.precision = Precision::kFloat16;
    spec.grad_scaler = scaler;
    spec.clipping.max_norm = 100;
    return TrainedModule(FloatMlp(), GetParam(), spec, HalfConfig());
  }
  static constexpr double kHuge = 1099511627776;  // 2^40 overflows float16
};
INSTANTIATE_TEST_SUITE_P(Workers, Float16Test, ::testing::Values(1, 2, 3));

TEST_P(Float16Test, GradientsAreUnscaledBeforeTheyAreUsed) {
  TrainedModule trained = Make({.init_scale = 1024});
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
  spec.clipping.max_norm = 100;
  TrainedModule reference(FloatMlp(), 1, spec, HalfConfig());
  for (const int64_t rows : {7, 5}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult ours,
                               trained.Step(FloatInputs(rows), Classes(rows)));
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult theirs,
                               reference.Step(FloatInputs(rows), Classes(rows)));
    EXPECT_NEAR(*ours.gradient_norm, *theirs.gradient_norm, 1e-2 * *theirs.gradient_norm);
    EXPECT_NEAR(*ours.loss, *theirs.loss, 1e-2);
  }
  ExpectSameState(trained.state(), reference.state(), 1e-2);
  EXPECT_FALSE(at::equal(trained.state()["w1"], reference.state()["w1"]));  // it was float16
}

TEST_P(Float16Test, AnOverflowSkipsTheUpdateAndHalvesTheScale) {
  TrainedModule trained = Make({.init_scale = kHuge, .growth_interval = 2});
  const State before = trained.state();
  double scale = kHuge;
  bool updated = false;
  while (!updated && scale > 1) {
    EXPECT_EQ(trained->gradient_scale(), scale);
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result,
                               trained.Step(FloatInputs(7), Classes(7)));
    EXPECT_TRUE(std::isfinite(*result.loss));
    EXPECT_NE(result.skipped, result.updated);
    updated = result.updated;
    if (!updated) {
      scale /= 2;
      ExpectSameState(trained.state(), before, 0);
    }
  }
  EXPECT_LT(scale, kHuge);
  EXPECT_FALSE(at::equal(trained.state()["w1"], before.at("w1")));
  ASSERT_THAT(trained.Step(FloatInputs(7), Classes(7)), IsOk());
  EXPECT_EQ(trained->gradient_scale(), 2 * scale);  // two good ones
}

TEST_P(Float16Test, AnOverflowAmongBatchesThatAccumulateSkipsTheirUpdate) {
  TrainedModule trained = Make({.init_scale = kHuge});
  const State before = trained.state();
  for (int b = 0; b < 2; ++b) {
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                               trained.ForwardBackward(FloatInputs(7), Classes(7)));
    EXPECT_FALSE(half.skipped);  // it is the update that will be
  }
  EXPECT_EQ(trained->accumulated(), 2);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, trained.Update());
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.updated);
  EXPECT_EQ(trained->accumulated(), 0);
  EXPECT_EQ(trained->gradient_scale(), kHuge / 2);
  ExpectSameState(trained.state(), before, 0);
}

TEST_P(Float16Test, ALossThatIsNotFiniteIsNoOverflow) {
  TrainedModule trained = Make({.init_scale = 1024});
  at::Tensor x = FloatInputs(7);
  x[6].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(trained.Step(x, Classes(7)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the loss")));
  EXPECT_EQ(trained->gradient_scale(), 1024);
}

}  // namespace
}  // namespace braid
