// Compares Loss with PyTorch's losses.
#include "server/training/loss/loss.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/loss/loss_target.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Outputs `logits`, FP64 [B, 3], and `single`, FP32 [B, 3].
ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"logits", DataType::kFp64, {3}}, {"single", DataType::kFp32, {3}}};
  return config;
}

Loss Make(const LossSpec& spec, LossMode mode = LossMode::kCentral) {
  const absl::StatusOr<Loss> loss = Loss::Create(spec, mode, "losses[0]", Config());
  EXPECT_THAT(loss, IsOk());
  return *loss;
}

at::Tensor Output() { return at::arange(12, at::kDouble).sin().view({4, 3}); }
HostTensor Classes(const std::vector<int64_t>& classes) {
  return MakeHost<int64_t>("targets[1]", {static_cast<int64_t>(classes.size())}, classes);
}
// FP64 [4, 3] of 0.25, but for one in row 2.
HostTensor Values(double other = 0.5) {
  std::vector<double> values(12, 0.25);
  values[7] = other;
  return MakeHost<double>("targets[1]", {4, 3}, values);
}
at::Tensor ValuesTensor() {
  at::Tensor target = at::full({4, 3}, 0.25, at::kDouble);
  target.flatten()[7] = 0.5;
  return target;
}

TargetRows RowsOf(const HostTensor& target, int64_t start, int64_t rows) {
  return {absl::MakeConstSpan(&target, 1), start, rows};
}
TargetRows All(const HostTensor& target) { return RowsOf(target, 0, target.rows()); }

absl::Status Refusal(const LossSpec& spec, const at::Tensor& output, const HostTensor& target) {
  return Make(spec).Compute({output}, RowsOf(target, 0, output.size(0))).status();
}

// Compares loss and gradient with LibTorch's own of `expected(output, reduction)`, by both
// reductions.
template <typename Expected>
void ExpectSame(LossSpec spec, const HostTensor& target, Expected expected) {
  for (const auto& [ours, theirs] :
       {std::pair{Reduction::kMean, at::Reduction::Mean}, {Reduction::kSum, at::Reduction::Sum}}) {
    spec.reduction = ours;
    const at::Tensor leaf = Output().requires_grad_(true);
    const at::Tensor reference = expected(leaf, int64_t{theirs});
    const at::Tensor output = Output().requires_grad_(true);
    BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss, Make(spec).Compute({output}, All(target)));
    EXPECT_TRUE(at::equal(loss, reference)) << spec.name << loss << reference;
    EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {output})[0],
                          torch::autograd::grad({reference}, {leaf})[0]))
        << spec.name;
  }
}

TEST(LossComputeTest, CrossEntropyOfClasses) {
  const at::Tensor target = at::tensor({0, 2, 1, -100}, at::kLong);
  const at::Tensor weights = at::tensor({0.5, 1.0, 2.0}, at::kDouble);
  for (const double smoothing : {0.0, 0.1}) {
    ExpectSame({.name = "cross_entropy", .label_smoothing = smoothing}, Classes({0, 2, 1, -100}),
               [&](const at::Tensor& output, int64_t reduction) {
                 return at::cross_entropy_loss(output, target, {}, reduction, -100, smoothing);
               });
    ExpectSame(
        {.name = "cross_entropy", .label_smoothing = smoothing, .class_weights = {0.5, 1, 2}},
        Classes({0, 2, 1, -100}), [&](const at::Tensor& output, int64_t reduction) {
          return at::cross_entropy_loss(output, target, weights, reduction, -100, smoothing);
        });
  }
}

TEST(LossComputeTest, IgnoredClassesDoNotCount) {
  ExpectSame({.name = "cross_entropy", .ignore_index = 1}, Classes({0, 1, 1, 2}),
             [](const at::Tensor& output, int64_t reduction) {
               const at::Tensor counted = at::stack({output[0], output[3]});
               return at::cross_entropy_loss(counted, at::tensor({0, 2}, at::kLong), {}, reduction);
             });
}

TEST(LossComputeTest, CrossEntropyOfProbabilities) {
  ExpectSame({.name = "cross_entropy"}, Values(), [](const at::Tensor& output, int64_t reduction) {
    return at::cross_entropy_loss(output, ValuesTensor(), {}, reduction);
  });
  const at::Tensor weights = at::tensor({0.5, 1.0, 2.0}, at::kDouble);
  ExpectSame({.name = "cross_entropy", .label_smoothing = 0.2, .class_weights = {0.5, 1, 2}},
             Values(), [&](const at::Tensor& output, int64_t reduction) {
               return at::cross_entropy_loss(output, ValuesTensor(), weights, reduction, -100, 0.2);
             });
}

TEST(LossComputeTest, CrossEntropyOfClassesWithMoreDimensions) {
  const at::Tensor output = at::arange(24, at::kDouble).sin().view({2, 3, 4});
  const HostTensor target = MakeHost<int64_t>("targets[0]", {2, 4}, {0, 1, 2, 0, 1, 2, 0, 1});
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss,
                             Make({.name = "cross_entropy"}).Compute({output}, All(target)));
  const at::Tensor classes = at::arange(8).remainder(3).view({2, 4});
  EXPECT_TRUE(at::equal(loss, at::cross_entropy_loss(output, classes)));
  EXPECT_FALSE(loss.requires_grad());
}

TEST(LossComputeTest, NegativeLogLikelihood) {
  const at::Tensor target = at::tensor({0, 2, 7, 1}, at::kLong);
  const at::Tensor weights = at::tensor({0.5, 1.0, 2.0}, at::kDouble);
  ExpectSame({.name = "nll", .ignore_index = 7, .class_weights = {0.5, 1, 2}},
             Classes({0, 2, 7, 1}), [&](const at::Tensor& output, int64_t reduction) {
               return at::nll_loss(output, target, weights, reduction, 7);
             });
}

TEST(LossComputeTest, LossesOfNumbers) {
  const at::Tensor target = ValuesTensor();
  ExpectSame({.name = "mse"}, Values(), [&](const at::Tensor& output, int64_t reduction) {
    return at::mse_loss(output, target, reduction);
  });
  ExpectSame({.name = "l1"}, Values(), [&](const at::Tensor& output, int64_t reduction) {
    return at::l1_loss(output, target, reduction);
  });
  ExpectSame({.name = "smooth_l1", .beta = 0.7}, Values(),
             [&](const at::Tensor& output, int64_t reduction) {
               return at::smooth_l1_loss(output, target, reduction, 0.7);
             });
  ExpectSame({.name = "huber", .delta = 0.6}, Values(),
             [&](const at::Tensor& output, int64_t reduction) {
               return at::huber_loss(output, target, reduction, 0.6);
             });
}

TEST(LossComputeTest, BinaryCrossEntropyWithLogits) {
  const at::Tensor target = ValuesTensor();
  ExpectSame({.name = "bce_with_logits"}, Values(),
             [&](const at::Tensor& output, int64_t reduction) {
               return at::binary_cross_entropy_with_logits(output, target, {}, {}, reduction);
             });
  for (const std::vector<double>& weights : {std::vector<double>{3}, {1, 2, 3}}) {
    ExpectSame({.name = "bce_with_logits", .pos_weight = weights}, Values(),
               [&](const at::Tensor& output, int64_t reduction) {
                 return at::binary_cross_entropy_with_logits(
                     output, target, {}, at::tensor(weights, at::kDouble), reduction);
               });
  }
}

TEST(LossComputeTest, KullbackLeiblerDivergence) {
  const at::Tensor target = ValuesTensor();
  for (const bool log_target : {false, true}) {
    ExpectSame({.name = "kl_div", .log_target = log_target}, Values(),
               [&](const at::Tensor& output, int64_t reduction) {
                 return at::kl_div(output, target, reduction, log_target);
               });
  }
}

TEST(LossComputeTest, DividesKlDivByTheRows) {
  const at::Tensor target = ValuesTensor();
  const Loss loss = Make({.name = "kl_div", .reduction = Reduction::kBatchMean});
  const HostTensor values = Values();
  const at::Tensor output = Output().requires_grad_(true);
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor actual, loss.Compute({output}, All(values)));
  const at::Tensor leaf = Output().requires_grad_(true);
  const at::Tensor wanted = at::kl_div(leaf, target, at::Reduction::Sum) / 4;
  EXPECT_TRUE(at::equal(actual, wanted));
  EXPECT_TRUE(at::equal(torch::autograd::grad({actual}, {output})[0],
                        torch::autograd::grad({wanted}, {leaf})[0]));
  EXPECT_EQ(*loss.Denominator(All(values)), 4);
}

TEST(LossComputeTest, BroadcastsPosWeight) {
  ModelConfig config = Config();
  config.outputs = {{"masks", DataType::kFp64, {3, 2}}};
  const at::Tensor output = at::arange(24, at::kDouble).sin().view({4, 3, 2});
  const HostTensor target = MakeHost<double>("targets[0]", {4, 3, 2}, std::vector<double>(24, 0.3));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3, 1}, {3, 2}, {1, 3, 1}, {1, 2}, {1, 1, 1}}) {
    const at::Tensor weights = at::arange(c10::multiply_integers(shape), at::kDouble).add(0.5);
    LossSpec spec = {.name = "bce_with_logits", .pos_weight_shape = shape};
    spec.pos_weight.assign(weights.const_data_ptr<double>(),
                           weights.const_data_ptr<double>() + weights.numel());
    BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss,
                               Loss::Create(spec, LossMode::kCentral, "losses[0]", config));
    BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor actual, loss.Compute({output}, All(target)));
    EXPECT_TRUE(at::equal(actual, at::binary_cross_entropy_with_logits(
                                      output, at::full_like(output, 0.3), {}, weights.view(shape))))
        << ShapeString(shape);
  }
}

TEST(LossComputeTest, TakesItsRowsOfTheTarget) {
  const HostTensor classes = Classes({0, 2, 1, 1});
  BRAID_ASSERT_OK_AND_ASSIGN(
      const at::Tensor entropy,
      Make({.name = "cross_entropy"}).Compute({Output().slice(0, 1, 3)}, RowsOf(classes, 1, 2)));
  EXPECT_TRUE(at::equal(
      entropy, at::cross_entropy_loss(Output().slice(0, 1, 3), at::tensor({2, 1}, at::kLong))));
  const HostTensor values = Values();
  BRAID_ASSERT_OK_AND_ASSIGN(
      const at::Tensor squares,
      Make({.name = "mse"}).Compute({Output().slice(0, 2, 4)}, RowsOf(values, 2, 2)));
  EXPECT_TRUE(
      at::equal(squares, at::mse_loss(Output().slice(0, 2, 4), ValuesTensor().slice(0, 2, 4))));
}

// Under autocast an output comes in another datatype than the model's.
TEST(LossComputeTest, IsComputedInTheModelsDatatype) {
  const at::Tensor output = Output().to(at::kBFloat16).requires_grad_(true);
  const HostTensor target = MakeHost<float>("targets[0]", {4, 3}, std::vector<float>(12, 0.3F));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const at::Tensor loss,
      Make({.name = "mse", .output = "single"}).Compute({output}, All(target)));
  const at::Tensor widened = Output().to(at::kBFloat16).to(at::kFloat).requires_grad_(true);
  const at::Tensor reference = at::mse_loss(widened, at::full({4, 3}, 0.3F, at::kFloat));
  EXPECT_TRUE(at::equal(loss, reference));
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const at::Tensor gradient = torch::autograd::grad({loss}, {output})[0];
  EXPECT_TRUE(
      at::equal(gradient, torch::autograd::grad({reference}, {widened})[0].to(at::kBFloat16)));
}

TEST(LossComputeTest, AModelsOwnLossIsReduced) {
  const at::Tensor output = Output().flatten();
  const Loss mean = Make({}, LossMode::kModel);
  const Loss sum = Make({.reduction = Reduction::kSum}, LossMode::kModel);
  EXPECT_TRUE(at::equal(*mean.Compute({output}, {{}, 0, 12}), output.mean()));
  EXPECT_TRUE(at::equal(*sum.Compute({output}, {{}, 0, 12}), output.sum()));
  EXPECT_TRUE(at::equal(*mean.Compute({output[3]}, {{}, 0, 12}), output[3]));
  EXPECT_THAT(mean.Compute({Output()}, {{}, 0, 4}),
              RefusesField("losses[0].output", AllOf(HasSubstr("[4, 3]"), HasSubstr("0-dim"))));
}

TEST(LossComputeTest, AClassOutOfRangeNamesItsRowOfTheBatch) {
  for (const char* name : {"cross_entropy", "nll"}) {
    for (const int64_t wrong : {int64_t{3}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      const HostTensor target = Classes({0, 9, wrong, 9});
      EXPECT_THAT(
          Make({.name = name}).Compute({Output().slice(0, 0, 1)}, RowsOf(target, 2, 1)),
          RefusesField("targets[1]",
                       AllOf(HasSubstr("class index " + std::to_string(wrong)), HasSubstr("row 2"),
                             HasSubstr("'logits'"), HasSubstr("expected 0 to 2"))));
    }
  }
}

TEST(LossComputeTest, NanNamesItsRowOfTheBatch) {
  for (const char* name :
       {"mse", "l1", "smooth_l1", "huber", "bce_with_logits", "kl_div", "cross_entropy"}) {
    const HostTensor target = Values(kNan);
    EXPECT_THAT(Make({.name = name}).Compute({Output().slice(0, 1, 4)}, RowsOf(target, 1, 3)),
                RefusesField("targets[1]", AllOf(HasSubstr("NaN"), HasSubstr("row 2"))));
  }
}

TEST(LossComputeTest, BinaryTargetsAreProbabilities) {
  for (const double wrong : {-0.5, 1.5, kInf}) {
    EXPECT_THAT(Refusal({.name = "bce_with_logits"}, Output(), Values(wrong)),
                RefusesField("targets[1]", AllOf(HasSubstr("row 2 is out of range"),
                                                 HasSubstr("expected 0 to 1"))));
  }
  EXPECT_THAT(Refusal({.name = "mse"}, Output(), Values(-0.5)), IsOk());
}

TEST(LossComputeTest, ATargetOfAnotherDatatypeSaysWhatIsTaken) {
  const HostTensor floats = MakeHost<float>("targets[0]", {4, 3}, std::vector<float>(12));
  EXPECT_THAT(Refusal({.name = "mse"}, Output(), floats),
              RefusesField("targets[0].datatype",
                           AllOf(HasSubstr("FP32 [4, 3]"), HasSubstr("expected FP64 [4, 3]"))));
  const HostTensor ints = MakeHost<int32_t>("targets[0]", {4}, std::vector<int32_t>(4));
  EXPECT_THAT(Refusal({.name = "cross_entropy"}, Output(), ints),
              RefusesField("targets[0].datatype",
                           AllOf(HasSubstr("INT32 [4]"), HasSubstr("INT64 [4], class indices"),
                                 HasSubstr("FP64 [4, 3], class probabilities"))));
  EXPECT_THAT(Refusal({.name = "mse"}, Output(), Classes({0, 1, 2, 0})),
              RefusesField("targets[1].datatype", HasSubstr("INT64 [4]")));
  EXPECT_THAT(
      Refusal({.name = "nll"}, Output(), Values()),
      RefusesField("targets[1].datatype", AllOf(HasSubstr("expected INT64 [4], class indices"),
                                                Not(HasSubstr("probabilities")))));
  EXPECT_THAT(Refusal({.name = "mse", .output = "single"}, Output().to(at::kBFloat16), Values()),
              RefusesField("targets[1].datatype", HasSubstr("expected FP32 [4, 3]")));
}

TEST(LossComputeTest, ATargetOfAnotherShapeSaysWhatIsTaken) {
  const HostTensor wide = MakeHost<double>("targets[0]", {4, 2}, std::vector<double>(8));
  EXPECT_THAT(Refusal({.name = "mse"}, Output(), wide),
              RefusesField("targets[0].shape", HasSubstr("expected FP64 [4, 3]")));
  const HostTensor column = MakeHost<int64_t>("targets[0]", {4, 1}, {0, 1, 2, 0});
  EXPECT_THAT(Refusal({.name = "cross_entropy"}, Output(), column),
              RefusesField("targets[0].shape", HasSubstr("INT64 [4], class indices")));
  // A part of the batch names the whole of the target.
  EXPECT_THAT(Refusal({.name = "mse"}, Output().slice(0, 0, 2), wide),
              RefusesField("targets[0].shape", HasSubstr("expected FP64 [4, 3]")));
}

TEST(LossComputeTest, AnOutputThatDoesNotFit) {
  EXPECT_THAT(Refusal({.name = "cross_entropy"}, Output()[0], Classes({0, 1, 2})),
              RefusesField("losses[0].output", HasSubstr("[rows, classes, ...]")));
  const HostTensor target = Values();
  EXPECT_THAT(Make({.name = "mse"}).Compute({Output().sum()}, All(target)),
              RefusesField("losses[0].output", HasSubstr("has shape []")));
}

TEST(LossCheckTargetTest, AnOutputWithoutClasses) {
  const HostTensor values = MakeHost<double>("targets[0]", {1}, {1});
  for (const char* name : {"cross_entropy", "nll"}) {
    for (const HostTensor& target : {values, Classes({0})}) {
      EXPECT_THAT(Make({.name = name}).CheckTargets({{-1}}, {target}),
                  RefusesField("losses[0].output", HasSubstr("has shape [-1] (expected [rows, ")));
    }
  }
  EXPECT_THAT(Make({.name = "mse"}).CheckTargets({{}}, {values}),
              RefusesField("losses[0].output", HasSubstr("has shape []")));
  EXPECT_THAT(Make({.name = "mse"}).CheckTargets({{-1}}, {values}), IsOk());
}

TEST(LossCheckTargetTest, SizesThatAreNotKnownMayFit) {
  EXPECT_THAT(Make({.name = "cross_entropy", .class_weights = {1, 2}})
                  .CheckTargets({{-1, -1}}, {Classes({0})}),
              IsOk());
  EXPECT_THAT(Make({.name = "cross_entropy", .class_weights = {1, 2}})
                  .CheckTargets({{-1, 3}}, {Classes({0})}),
              RefusesField("losses[0].class_weights", HasSubstr("has 3 classes")));
  EXPECT_THAT(Make({.name = "mse"}).CheckTargets({{-1, 3}}, {Classes({0})}),
              RefusesField("targets[1].datatype", HasSubstr("expected FP64 [1, 3]")));
}

TEST(CheckTargetFormsTest, RejectsOutputsWithoutClasses) {
  const LossSpec spec = {.name = "cross_entropy", .output = "logits", .ignore_index = -100};
  EXPECT_THAT(CheckTargetForms(LossKind::kCrossEntropy, spec, DataType::kFp64, {4}, {Classes({0})}),
              RefusesField("targets[1]", HasSubstr("'logits' has shape [4]")));
  EXPECT_THAT(CheckTargetForms(LossKind::kMse, spec, DataType::kFp64, {}, {Classes({0})}),
              RefusesField("targets[1]", HasSubstr("'logits' has shape []")));
}

TEST(LossComputeTest, WeightsAreOneAClassOrOneAnEntry) {
  EXPECT_THAT(
      Refusal({.name = "cross_entropy", .class_weights = {1, 2}}, Output(), Classes({0, 1, 0, 1})),
      RefusesField("losses[0].class_weights",
                   AllOf(HasSubstr("holds 2"), HasSubstr("has 3 classes"))));
  EXPECT_THAT(Refusal({.name = "bce_with_logits", .pos_weight = {1, 2}}, Output(), Values()),
              RefusesField("losses[0].pos_weight", AllOf(HasSubstr("has shape [2]"),
                                                         HasSubstr("output 'logits', [4, 3]"))));
  // One for each row.
  EXPECT_THAT(
      Refusal({.name = "bce_with_logits", .pos_weight = {1, 2, 3, 4}, .pos_weight_shape = {4, 1}},
              Output(), Values()),
      RefusesField("losses[0].pos_weight", HasSubstr("has shape [4, 1]")));
  const HostTensor flat = MakeHost<double>("targets[0]", {3}, {0, 1, 0});
  EXPECT_THAT(Refusal({.name = "bce_with_logits", .pos_weight = {1, 2, 3}}, Output()[0], flat),
              RefusesField("losses[0].pos_weight", HasSubstr("[3]")));
}

TEST(LossComputeTest, IgnoreIndexDoesNotGoWithProbabilities) {
  EXPECT_THAT(Refusal({.name = "cross_entropy", .ignore_index = 1}, Output(), Values()),
              RefusesField("targets[1].datatype", HasSubstr("ignore_index 1")));
}

TEST(LossDenominatorTest, IsTheNumbers) {
  const HostTensor values = Values();
  const HostTensor classes = Classes({0, 1, 2, 0});
  EXPECT_EQ(*Make({.name = "mse"}).Denominator(RowsOf(values, 1, 3)), 9);
  const HostTensor flat = MakeHost<double>("targets[0]", {3}, {0, 1, 0});
  EXPECT_EQ(*Make({.name = "l1"}).Denominator(RowsOf(flat, 1, 2)), 2);
  // A distribution over 3 classes counts once, in each of 4 places.
  const HostTensor places = MakeHost<double>("targets[0]", {2, 3, 4}, std::vector<double>(24));
  EXPECT_EQ(*Make({.name = "cross_entropy"}).Denominator(RowsOf(places, 0, 2)), 8);
  EXPECT_EQ(*Make({.name = "kl_div"}).Denominator(RowsOf(places, 0, 2)), 24);
  EXPECT_EQ(*Make({.name = "cross_entropy", .class_weights = {1, 2, 3}})
                 .Denominator(RowsOf(values, 0, 2)),
            2);
  EXPECT_EQ(*Make({.name = "nll"}).Denominator(RowsOf(classes, 1, 3)), 3);
  EXPECT_EQ(*Make({}, LossMode::kModel).Denominator({{}, 0, 5}), 5);
}

TEST(LossDenominatorTest, IsTheWeightOfTheClassesThatCount) {
  const HostTensor target = Classes({0, 2, -100, 2, 1});
  for (const double smoothing : {0.0, 0.1}) {
    const LossSpec spec = {.name = "cross_entropy", .label_smoothing = smoothing};
    EXPECT_EQ(*Make(spec).Denominator(RowsOf(target, 1, 4)), 3);
    LossSpec weighted = spec;
    weighted.class_weights = {0.5, 1, 4};
    EXPECT_EQ(*Make(weighted).Denominator(All(target)), 9.5);
    EXPECT_EQ(*Make(weighted).Denominator(RowsOf(target, 2, 1)), 0);
  }
  const HostTensor pixels = MakeHost<int64_t>("targets[0]", {2, 3}, {0, 0, -100, 1, -100, -100});
  EXPECT_EQ(*Make({.name = "nll"}).Denominator(RowsOf(pixels, 0, 1)), 2);
  EXPECT_EQ(*Make({.name = "nll"}).Denominator(RowsOf(pixels, 1, 1)), 1);
}

TEST(LossDenominatorTest, OfASumIsOne) {
  const HostTensor target = Classes({0, -100});
  EXPECT_EQ(*Make({.name = "nll", .reduction = Reduction::kSum}).Denominator(All(target)), 1);
}

TEST(LossDenominatorTest, RefusesAClassWithoutWeight) {
  const HostTensor target = Classes({0, 1, 2, -1});
  const Loss loss = Make({.name = "nll", .class_weights = {1, 2, 3}});
  EXPECT_EQ(*loss.Denominator(RowsOf(target, 0, 3)), 6);
  EXPECT_THAT(loss.Denominator(All(target)),
              RefusesField("targets[1]", AllOf(HasSubstr("class index -1 in row 3"),
                                               HasSubstr("losses[0].class_weights has 3"))));
}

// Outputs `a` and `b` [B, 3], `narrow` [B, 2], `cells` [B, 3, 2] and `frames` [B, 5, 3], FP64.
ModelConfig SeveralOutputsConfig() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"a", DataType::kFp64, {3}},
                    {"b", DataType::kFp64, {3}},
                    {"narrow", DataType::kFp64, {2}},
                    {"cells", DataType::kFp64, {3, 2}},
                    {"frames", DataType::kFp64, {5, 3}}};
  return config;
}

Loss MakeSeveral(const LossSpec& spec) {
  const absl::StatusOr<Loss> loss =
      Loss::Create(spec, LossMode::kCentral, "losses[0]", SeveralOutputsConfig());
  EXPECT_THAT(loss, IsOk());
  return *loss;
}

absl::Status RefusalOf(const LossSpec& spec, const std::vector<at::Tensor>& outputs,
                       const std::vector<HostTensor>& targets) {
  return MakeSeveral(spec).Compute(outputs, {targets, 0, outputs.front().size(0)}).status();
}

HostTensor Ints(std::string name, std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  return MakeHost<int64_t>(std::move(name), std::move(shape), values);
}

TEST(LossComputeTest, RejectsNegativeTargetsOfPoissonNll) {
  EXPECT_THAT(Refusal({.name = "poisson_nll"}, Output(), Values(-0.5)),
              RefusesField("targets[1]", AllOf(HasSubstr("-0.5 in row 2 is out of range"),
                                               HasSubstr("expected at least 0"))));
}

TEST(LossComputeTest, PoissonNllEqualsLibTorch) {
  const at::Tensor target = ValuesTensor();
  ExpectSame({.name = "poisson_nll", .full = true}, Values(),
             [&](const at::Tensor& output, int64_t reduction) {
               return at::poisson_nll_loss(output, target, true, true, 1e-8, reduction);
             });
  const HostTensor values = Values();
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor rates,
                             Make({.name = "poisson_nll", .eps = 0.5, .log_input = false})
                                 .Compute({Output().abs()}, All(values)));
  EXPECT_TRUE(at::equal(
      rates, at::poisson_nll_loss(Output().abs(), target, false, false, 0.5, at::Reduction::Mean)));
}

TEST(LossComputeTest, ComparesEmbeddingsRowByRow) {
  const at::Tensor a = Output();
  const at::Tensor b = Output().cos();
  const HostTensor signs = Ints("targets[0]", {4}, {1, -1, -1, 1});
  BRAID_ASSERT_OK_AND_ASSIGN(
      const at::Tensor cosine,
      MakeSeveral({.name = "cosine_embedding", .margin = 0.3}).Compute({a, b}, All(signs)));
  EXPECT_TRUE(at::equal(
      cosine, at::cosine_embedding_loss(a, b, at::tensor({1, -1, -1, 1}, at::kLong), 0.3)));
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor triplet, MakeSeveral({.name = "triplet_margin",
                                                                    .outputs = {"a", "b", "b"},
                                                                    .margin = 0.5,
                                                                    .p = 1,
                                                                    .swap = true})
                                                           .Compute({a, b, b.neg()}, {{}, 0, 4}));
  EXPECT_TRUE(at::equal(triplet, at::triplet_margin_loss(a, b, b.neg(), 0.5, 1, 1e-6, true)));
  EXPECT_THAT(
      RefusalOf({.name = "cosine_embedding"}, {a, b}, {Ints("targets[0]", {4}, {1, -1, 0, 1})}),
      RefusesField("targets[0]",
                   AllOf(HasSubstr("0 in row 2 is out of range"), HasSubstr("expected 1 or -1"))));
  EXPECT_THAT(
      RefusalOf({.name = "cosine_embedding"}, {a, b}, {Ints("targets[0]", {4, 1}, {1, 1, 1, 1})}),
      RefusesField("targets[0].shape", HasSubstr("expected INT64 [4], 1 or -1, or FP64 [4]")));
  EXPECT_THAT(RefusalOf({.name = "cosine_embedding"}, {a, b.narrow(1, 0, 2)}, {signs}),
              RefusesField("losses[0].outputs[1]",
                           AllOf(HasSubstr("'b' has shape [4, 2]"), HasSubstr("[4, 3] of 'a'"))));
  EXPECT_THAT(RefusalOf({.name = "cosine_embedding", .outputs = {"cells", "a"}},
                        {a.unsqueeze(2), b}, {signs}),
              RefusesField("losses[0].outputs[0]", HasSubstr("expected [rows, features]")));
}

TEST(LossComputeTest, RejectsVariancesOfOtherShapes) {
  const LossSpec spec = {.name = "gaussian_nll"};
  const at::Tensor mean = Output();
  const std::vector<HostTensor> target = {Values()};
  for (const at::Tensor& variance : {at::ones({4, 3}), at::ones({4, 1}), at::ones({4})}) {
    EXPECT_THAT(RefusalOf(spec, {mean, variance}, target), IsOk());
  }
  for (const at::Tensor& variance : {at::ones({4, 2}), at::ones({4, 3, 1})}) {
    EXPECT_THAT(RefusalOf(spec, {mean, variance}, target),
                RefusesField("losses[0].outputs[1]",
                             HasSubstr("[4, 3] of 'a'; the last dimension may be missing")));
  }
}

TEST(LossComputeTest, DiceTakesClassesOrMasks) {
  const LossSpec spec = {.name = "dice", .output = "cells"};
  const at::Tensor cells = at::arange(12, at::kDouble).sin().view({2, 3, 2});
  EXPECT_THAT(RefusalOf(spec, {cells}, {Ints("targets[0]", {2, 2}, {0, 3, 1, 2})}),
              RefusesField("targets[0]", HasSubstr("class index 3 in row 0")));
  EXPECT_THAT(RefusalOf(spec, {cells},
                        {MakeHost<double>("targets[0]", {2, 3, 2}, std::vector<double>(12, 1.5))}),
              RefusesField("targets[0]", HasSubstr("expected 0 to 1")));
  EXPECT_THAT(RefusalOf(spec, {cells}, {Ints("targets[0]", {2, 3, 2}, std::vector<int64_t>(12))}),
              RefusesField("targets[0].shape", AllOf(HasSubstr("INT64 [2, 2], class indices"),
                                                     HasSubstr("FP64 [2, 3, 2], masks"))));
  EXPECT_THAT(RefusalOf({.name = "dice"}, {Output()}, {Ints("targets[0]", {4}, {0, 1, 2, 0})}),
              RefusesField("losses[0].output", HasSubstr("expected [rows, classes, positions")));
}

// Frames of three rows, and the targets of the tests of CTC.
at::Tensor Frames() { return at::arange(45, at::kDouble).sin().view({3, 5, 3}).log_softmax(2); }
std::vector<HostTensor> Sequences(const std::vector<int64_t>& lengths,
                                  const std::vector<int64_t>& steps) {
  return {Ints("targets[0]", {3, 2}, {1, 2, 2, -7, 1, 1}), Ints("targets[1]", {3}, lengths),
          Ints("targets[2]", {3}, steps)};
}

TEST(LossComputeTest, CtcEqualsLibTorch) {
  const LossSpec spec = {.name = "ctc", .output = "frames", .input_lengths = "steps"};
  const std::vector<HostTensor> targets = Sequences({2, 1, 2}, {5, 4, 3});
  const at::Tensor output = Frames().requires_grad_(true);
  BRAID_ASSERT_OK_AND_ASSIGN(const at::Tensor loss,
                             MakeSeveral(spec).Compute({output}, {targets, 0, 3}));
  const at::Tensor leaf = Frames().requires_grad_(true);
  const at::Tensor padded = at::tensor({1, 2, 2, 1, 1, 1}, at::kLong).view({3, 2});
  const at::Tensor wanted = at::ctc_loss(
      leaf.transpose(0, 1), padded, std::vector<int64_t>{5, 4, 3}, std::vector<int64_t>{2, 1, 2});
  EXPECT_TRUE(at::equal(loss, wanted));
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss}, {output})[0],
                        torch::autograd::grad({wanted}, {leaf})[0]));
  EXPECT_EQ(*MakeSeveral(spec).Denominator({targets, 0, 3}), 3);
}

TEST(LossComputeTest, CtcNamesTheTargetThatIsOutOfRange) {
  const LossSpec spec = {.name = "ctc", .output = "frames", .input_lengths = "steps"};
  const auto refusal = [&](const LossSpec& of, const std::vector<int64_t>& lengths,
                           const std::vector<int64_t>& steps) {
    return RefusalOf(of, {Frames()}, Sequences(lengths, steps));
  };
  EXPECT_THAT(refusal(spec, {2, 2, 2}, {5, 5, 5}),
              RefusesField("targets[0]", AllOf(HasSubstr("class index -7 in row 1 is out of range"),
                                               HasSubstr("except the blank 0"))));
  EXPECT_THAT(refusal({.name = "ctc", .output = "frames", .input_lengths = "steps", .blank = 2},
                      {1, 1, 1}, {5, 5, 5}),
              RefusesField("targets[0]", HasSubstr("class index 2 in row 1 is the blank")));
  EXPECT_THAT(
      refusal(spec, {2, 3, 2}, {5, 5, 5}),
      RefusesField("targets[1]", AllOf(HasSubstr("length 3 in row 1"),
                                       HasSubstr("expected 0 to 2, the size of 'target'"))));
  for (const int64_t wrong : {0, 6}) {
    EXPECT_THAT(refusal(spec, {2, 1, 2}, {5, 5, wrong}),
                RefusesField("targets[2]", AllOf(HasSubstr("in row 2"),
                                                 HasSubstr("1 to 5, the time steps of 'frames'"))));
  }
  EXPECT_THAT(refusal({.name = "ctc", .output = "frames", .input_lengths = "steps", .blank = 3},
                      {2, 1, 2}, {5, 5, 5}),
              RefusesField("losses[0].blank",
                           HasSubstr("3 is out of range (expected 0 to 2: output 'frames' has 3")));
  std::vector<HostTensor> targets = Sequences({2, 1, 2}, {5, 5, 5});
  targets[1] = MakeHost<int32_t>("targets[1]", {3}, {2, 1, 2});
  EXPECT_THAT(RefusalOf(spec, {Frames()}, targets),
              RefusesField("targets[1].datatype", AllOf(HasSubstr("'target_lengths' is INT32 [3]"),
                                                        HasSubstr("INT64 [3], lengths"))));
}

TEST(LossCheckTargetsTest, ChecksSeveralOutputsAndTargets) {
  const std::vector<HostTensor> targets = {Ints("targets[0]", {1, 2}, {1, 2}),
                                           Ints("targets[1]", {1}, {2})};
  const Loss ctc = MakeSeveral({.name = "ctc", .output = "frames"});
  EXPECT_THAT(ctc.CheckTargets({{-1, 5, 3}}, targets), IsOk());
  EXPECT_THAT(ctc.CheckTargets({{-1, 5, 3}}, {targets[0], targets[0]}),
              RefusesField("targets[0].shape", HasSubstr("target 'target_lengths'")));
  const Loss triplet = MakeSeveral({.name = "triplet_margin", .outputs = {"a", "b", "narrow"}});
  EXPECT_THAT(triplet.CheckTargets({{-1, 3}, {-1, 3}, {-1, -1}}, {}), IsOk());
  EXPECT_THAT(triplet.CheckTargets({{-1, 3}, {-1, 3}, {-1, 2}}, {}),
              RefusesField("losses[0].outputs[2]", HasSubstr("'narrow' has shape [-1, 2]")));
}

}  // namespace
}  // namespace braid
