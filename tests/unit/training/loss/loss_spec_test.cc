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
using ::testing::ElementsAre;
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
  EXPECT_THAT(loss.outputs(), ElementsAre(0));
  EXPECT_EQ(Create({.name = "nll"})->spec().ignore_index, -100);
  EXPECT_EQ(Create({.name = "smooth_l1"})->spec().beta, 1);
  EXPECT_EQ(Create({.name = "huber"})->spec().delta, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss mse, Create({.name = "mse", .target = "y"}));
  EXPECT_EQ(mse.spec().target, "y");
  EXPECT_EQ(mse.spec().ignore_index, std::nullopt);
  EXPECT_EQ(mse.spec().beta, std::nullopt);
}

TEST(LossCreateTest, TakesItsOwnDefaultsAgain) {
  for (const char* name : {"cross_entropy", "nll", "mse", "l1", "smooth_l1", "huber",
                           "bce_with_logits", "kl_div", "poisson_nll", "gaussian_nll", "focal",
                           "sigmoid_focal", "dice", "cosine_embedding", "ctc"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = name}));
    EXPECT_THAT(Create(loss.spec()), IsOk()) << name;
  }
}

TEST(LossCreateTest, TakesTheOutputByName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = "mse", .output = "probs"}));
  EXPECT_THAT(loss.outputs(), ElementsAre(1));
}

TEST(LossCreateTest, RefusesUnknownNames) {
  for (const char* name : {"", "CrossEntropy", "l2"}) {
    EXPECT_THAT(
        Create({.name = name}),
        RefusesField("losses[2].name", HasSubstr("cross_entropy, nll, mse, l1, smooth_l1, huber, "
                                                 "bce_with_logits, kl_div, poisson_nll, ")));
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

TEST(LossCreateTest, RejectsShapesThatDoNotFitPosWeight) {
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

TEST(LossCreateTest, FillsInTheDefaultsOfEveryLoss) {
  EXPECT_EQ(Create({.name = "poisson_nll"})->spec().log_input, true);
  EXPECT_EQ(Create({.name = "poisson_nll"})->spec().eps, 1e-8);
  EXPECT_EQ(Create({.name = "gaussian_nll"})->spec().eps, 1e-6);
  EXPECT_EQ(Create({.name = "focal"})->spec().gamma, 2);
  EXPECT_EQ(Create({.name = "sigmoid_focal"})->spec().alpha, 0.25);
  EXPECT_EQ(Create({.name = "dice"})->spec().smooth, 1);
  EXPECT_EQ(Create({.name = "cosine_embedding"})->spec().margin, 0);
  EXPECT_EQ(Create({.name = "ctc"})->spec().target_lengths, "target_lengths");
  EXPECT_THAT(Create({.name = "ctc"})->targets(), ElementsAre("target", "target_lengths"));
  EXPECT_THAT(Create({.name = "ctc", .input_lengths = "n"})->targets(),
              ElementsAre("target", "target_lengths", "n"));
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss triplet, Create({.name = "triplet_margin",
                                                         .outputs = {"probs", "logits", "probs"}}));
  EXPECT_EQ(triplet.spec().margin, 1);
  EXPECT_EQ(triplet.spec().p, 2);
  EXPECT_EQ(triplet.spec().eps, 1e-6);
  EXPECT_THAT(triplet.targets(), ::testing::IsEmpty());
}

TEST(LossCreateTest, TakesItsOutputsByNameOrTheFirstOnes) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss first, Create({.name = "gaussian_nll"}));
  EXPECT_THAT(first.outputs(), ElementsAre(0, 1));
  EXPECT_THAT(first.spec().outputs, ElementsAre("logits", "probs"));
  EXPECT_EQ(first.spec().output, "");
  EXPECT_EQ(first.output_name(), "logits");
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss named,
                             Create({.name = "gaussian_nll", .outputs = {"probs", "logits"}}));
  EXPECT_THAT(named.outputs(), ElementsAre(1, 0));
  EXPECT_THAT(Create(named.spec()), IsOk());
}

TEST(LossCreateTest, RefusesOutputsThatDoNotFit) {
  EXPECT_THAT(Create({.name = "cosine_embedding", .output = "logits"}),
              RefusesField("losses[2].output", HasSubstr("expected `outputs`: input1, input2")));
  EXPECT_THAT(Create({.name = "cosine_embedding", .outputs = {"logits"}}),
              RefusesField("losses[2].outputs", HasSubstr("names 1 (expected 2: input1, input2)")));
  EXPECT_THAT(Create({.name = "cosine_embedding", .outputs = {"logits", "y"}}),
              RefusesField("losses[2].outputs[1]", HasSubstr("has no output 'y'")));
  EXPECT_THAT(Create({.name = "triplet_margin"}),
              RefusesField("losses[2].outputs[2]", HasSubstr("'ids' is INT64")));
  EXPECT_THAT(Create({.name = "mse", .outputs = {"logits"}}),
              RefusesField("losses[2].outputs", HasSubstr("'mse' has none")));
  EXPECT_THAT(Create({.name = "triplet_margin", .target = "y"}),
              RefusesField("losses[2].target", HasSubstr("takes no target")));
}

TEST(LossCreateTest, RefusesParametersOfEveryLossOutOfRange) {
  const struct {
    LossSpec spec;
    const char* field;
    const char* expected;
  } cases[] = {
      {{.name = "triplet_margin", .margin = 0}, "losses[2].margin", "above 0"},
      {{.name = "triplet_margin", .p = -1}, "losses[2].p", "above 0"},
      {{.name = "cosine_embedding", .margin = kNan}, "losses[2].margin", "not finite"},
      {{.name = "gaussian_nll", .eps = 0}, "losses[2].eps", "above 0"},
      {{.name = "focal", .gamma = -0.5}, "losses[2].gamma", "at least 0"},
      {{.name = "sigmoid_focal", .alpha = -0.5}, "losses[2].alpha", "0 to 1, or -1"},
      {{.name = "sigmoid_focal", .alpha = kNan}, "losses[2].alpha", "0 to 1, or -1"},
      {{.name = "dice", .smooth = 0}, "losses[2].smooth", "above 0"},
      {{.name = "ctc", .blank = -1}, "losses[2].blank", "at least 0"},
  };
  for (const auto& [spec, field, expected] : cases) {
    EXPECT_THAT(Create(spec), RefusesField(field, HasSubstr(expected)));
  }
}

TEST(LossCreateTest, RefusesParametersOfAnotherLoss) {
  const struct {
    LossSpec spec;
    const char* field;
    const char* owner;
  } cases[] = {
      {{.ignore_index = 1},
       "losses[2].ignore_index",
       "is cross_entropy's, nll's, focal's and dice's; 'l1' has none"},
      {{.label_smoothing = 0.1}, "losses[2].label_smoothing", "is cross_entropy's; 'l1' has none"},
      {{.class_weights = {1}},
       "losses[2].class_weights",
       "is cross_entropy's, nll's and focal's; 'l1'"},
      {{.pos_weight = {1}}, "losses[2].pos_weight", "is bce_with_logits's; 'l1' has none"},
      {{.beta = 1}, "losses[2].beta", "is smooth_l1's; 'l1' has none"},
      {{.delta = 1}, "losses[2].delta", "is huber's; 'l1' has none"},
      {{.log_target = true}, "losses[2].log_target", "is kl_div's; 'l1' has none"},
      {{.outputs = {"logits"}},
       "losses[2].outputs",
       "is gaussian_nll's, cosine_embedding's and triplet_margin's; 'l1' has none"},
      {{.target_lengths = "n"}, "losses[2].target_lengths", "is ctc's; 'l1' has none"},
      {{.gamma = 2}, "losses[2].gamma", "is focal's and sigmoid_focal's; 'l1' has none"},
      {{.log_input = false}, "losses[2].log_input", "is poisson_nll's; 'l1' has none"},
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
  EXPECT_THAT(loss.outputs(), ElementsAre(1));
  EXPECT_THAT(Create(loss.spec(), LossMode::kModel), IsOk());
  EXPECT_THAT(Create({.name = "mse"}, LossMode::kModel),
              RefusesField("losses[2].name", HasSubstr("leave it empty")));
  EXPECT_THAT(Create({.target = "y"}, LossMode::kModel),
              RefusesField("losses[2].target", HasSubstr("leave it empty")));
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
