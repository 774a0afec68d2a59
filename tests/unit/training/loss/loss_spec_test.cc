// Tests Loss::Create().
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/loss/loss.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"logits", DataType::kFp32, {3}},
                    {"probs", DataType::kFp32, {3}},
                    {"ids", DataType::kInt64, {}}};
  return config;
}

absl::StatusOr<Loss> Create(const LossSpec& spec, LossMode mode = LossMode::kCentral) {
  return Loss::Create(spec, mode, "losses[2]", Config());
}

TEST(LossCreateTest, FillsInTheDefaults) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = "cross_entropy"}));
  EXPECT_EQ(loss.kind(), LossKind::kCrossEntropy);
  EXPECT_EQ(loss.spec().output, "logits");
  EXPECT_EQ(loss.spec().target, "target");
  EXPECT_EQ(loss.spec().reduction, Reduction::kMean);
  EXPECT_EQ(loss.spec().weight, 1);
  EXPECT_EQ(loss.spec().ignore_index, -100);
  EXPECT_EQ(loss.output_index(), 0);
  EXPECT_EQ(Create({.name = "nll"})->spec().ignore_index, -100);
  EXPECT_EQ(Create({.name = "smooth_l1"})->spec().beta, 1);
  EXPECT_EQ(Create({.name = "huber"})->spec().delta, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss mse, Create({.name = "mse", .target = "y"}));
  EXPECT_EQ(mse.spec().target, "y");
  EXPECT_EQ(mse.spec().ignore_index, std::nullopt);
  EXPECT_EQ(mse.spec().beta, std::nullopt);
}

TEST(LossCreateTest, TakesItsOwnDefaultsAgain) {
  for (const char* name :
       {"cross_entropy", "nll", "mse", "l1", "smooth_l1", "huber", "bce_with_logits", "kl_div"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = name}));
    EXPECT_THAT(Create(loss.spec()), IsOk()) << name;
  }
}

TEST(LossCreateTest, TakesTheOutputByName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = "mse", .output = "probs"}));
  EXPECT_EQ(loss.output_index(), 1);
}

TEST(LossCreateTest, RefusesUnknownNames) {
  for (const char* name : {"", "CrossEntropy", "ctc"}) {
    EXPECT_THAT(
        Create({.name = name}),
        RefusesField("losses[2].name", HasSubstr("cross_entropy, nll, mse, l1, smooth_l1, huber, "
                                                 "bce_with_logits, kl_div, module")));
  }
  EXPECT_THAT(Create({.name = "mse", .output = "y"}),
              RefusesField("losses[2].output", AllOf(HasSubstr("'m' has no output 'y'"),
                                                     HasSubstr("'logits', 'probs', 'ids'"))));
}

TEST(LossCreateTest, RefusesAnOutputWithoutGradient) {
  EXPECT_THAT(Create({.name = "mse", .output = "ids"}),
              RefusesField("losses[2].output",
                           AllOf(HasSubstr("'ids' is INT64"), HasSubstr("floating-point"))));
}

TEST(LossCreateTest, RefusesParametersOutOfRange) {
  for (const double wrong : {-0.1, 1.5, kNan}) {
    EXPECT_THAT(Create({.name = "cross_entropy", .label_smoothing = wrong}),
                RefusesField("losses[2].label_smoothing", HasSubstr("expected 0 to 1")));
  }
  EXPECT_THAT(Create({.name = "cross_entropy", .label_smoothing = 1}), IsOk());
  for (const double wrong : {kInf, -kInf, kNan}) {
    EXPECT_THAT(Create({.name = "mse", .weight = wrong}),
                RefusesField("losses[2].weight", HasSubstr("not finite")));
  }
  EXPECT_THAT(Create({.name = "mse", .weight = -2}), IsOk());
  for (const double wrong : {0.0, -1.0, kInf, kNan}) {
    EXPECT_THAT(Create({.name = "smooth_l1", .beta = wrong}),
                RefusesField("losses[2].beta", HasSubstr("above 0")));
    EXPECT_THAT(Create({.name = "huber", .delta = wrong}),
                RefusesField("losses[2].delta", HasSubstr("above 0")));
  }
  for (const double wrong : {-1.0, kInf, kNan}) {
    EXPECT_THAT(Create({.name = "nll", .class_weights = {1, wrong}}),
                RefusesField("losses[2].class_weights", HasSubstr("at 1 is out of range")));
    EXPECT_THAT(Create({.name = "bce_with_logits", .pos_weight = {wrong}}),
                RefusesField("losses[2].pos_weight", HasSubstr("at 0 is out of range")));
  }
}

TEST(LossCreateTest, TheShapeOfPositiveWeightsHoldsThem) {
  const auto create = [](std::vector<int64_t> shape) {
    return Create({.name = "bce_with_logits",
                   .pos_weight = {1, 2, 3, 4, 5, 6},
                   .pos_weight_shape = std::move(shape)});
  };
  EXPECT_THAT(create({1, 2, 3}), IsOk());
  EXPECT_THAT(create({6})->spec().pos_weight_shape, ::testing::IsEmpty());
  const int64_t large = int64_t{1} << 32;
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{5}, {2, 2}, {6, 0}, {-2, -3}, {large, large, 6}}) {
    EXPECT_THAT(create(wrong),
                RefusesField("losses[2].pos_weight_shape",
                             HasSubstr("does not hold the 6 numbers of pos_weight")));
  }
}

TEST(LossCreateTest, OnlyKlDivDividesByRows) {
  EXPECT_THAT(Create({.name = "kl_div", .reduction = Reduction::kBatchMean}), IsOk());
  EXPECT_THAT(Create({.name = "mse", .reduction = Reduction::kBatchMean}),
              RefusesField("losses[2].reduction", HasSubstr("expected mean or sum")));
  EXPECT_THAT(Create({.reduction = Reduction::kBatchMean}, LossMode::kModel),
              RefusesField("losses[2].reduction", HasSubstr("expected mean or sum")));
}

TEST(LossCreateTest, RefusesParametersOfAnotherLoss) {
  const struct {
    LossSpec spec;
    const char* field;
    const char* owner;
  } cases[] = {
      {{.ignore_index = 1}, "losses[2].ignore_index", "is cross_entropy's and nll's; 'l1' has"},
      {{.label_smoothing = 0.1}, "losses[2].label_smoothing", "is cross_entropy's; 'l1' has none"},
      {{.class_weights = {1}}, "losses[2].class_weights", "is cross_entropy's and nll's; 'l1' has"},
      {{.pos_weight = {1}}, "losses[2].pos_weight", "is bce_with_logits's; 'l1' has none"},
      {{.beta = 1}, "losses[2].beta", "is smooth_l1's; 'l1' has none"},
      {{.delta = 1}, "losses[2].delta", "is huber's; 'l1' has none"},
      {{.log_target = true}, "losses[2].log_target", "is kl_div's; 'l1' has none"},
      {{.module = "bytes"}, "losses[2].module", "is module's; 'l1' has none"},
  };
  for (const auto& [given, field, owner] : cases) {
    LossSpec spec = given;
    spec.name = "l1";
    EXPECT_THAT(Create(spec), RefusesField(field, HasSubstr(owner)));
  }
  EXPECT_THAT(Create({.name = "nll", .label_smoothing = 0.1}),
              RefusesField("losses[2].label_smoothing", HasSubstr("'nll' has none")));
}

TEST(LossCreateTest, AModelsOwnLossIsAnOutputAndNothingElse) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const Loss loss,
      Create({.output = "probs", .reduction = Reduction::kSum, .weight = 2}, LossMode::kModel));
  EXPECT_EQ(loss.kind(), LossKind::kModel);
  EXPECT_EQ(loss.output_index(), 1);
  EXPECT_THAT(Create(loss.spec(), LossMode::kModel), IsOk());
  EXPECT_THAT(Create({.name = "mse"}, LossMode::kModel),
              RefusesField("losses[2].name", HasSubstr("expected none")));
  EXPECT_THAT(Create({.target = "y"}, LossMode::kModel),
              RefusesField("losses[2].target", HasSubstr("expected none")));
  EXPECT_THAT(Create({.beta = 1}, LossMode::kModel),
              RefusesField("losses[2].beta", HasSubstr("that the model computes has none")));
}

TEST(LossCreateTest, AModuleIsAFile) {
  EXPECT_THAT(Create({.name = "module"}), RefusesField("losses[2].module", HasSubstr("is empty")));
  EXPECT_THAT(Create({.name = "module", .module = "no file"}),
              RefusesField("losses[2].module", HasSubstr("cannot be loaded as TorchScript")));
}

}  // namespace
}  // namespace braid
