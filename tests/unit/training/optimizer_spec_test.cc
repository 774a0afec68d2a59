// What CheckOptimizer() and WithHyperParameters() let through.
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/optimizer.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(CheckOptimizerTest, DefaultsAndLimitsAreFine) {
  EXPECT_THAT(CheckOptimizer(SgdSpec{}), IsOk());
  EXPECT_THAT(CheckOptimizer(SgdSpec{.lr = 0}), IsOk());
  EXPECT_THAT(CheckOptimizer(SgdSpec{.momentum = 0.9, .nesterov = true}), IsOk());
  EXPECT_THAT(CheckOptimizer(AdamWSpec{}), IsOk());
  EXPECT_THAT(CheckOptimizer(AdamWSpec{.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0}), IsOk());
}

TEST(CheckOptimizerTest, SgdsFieldsOutOfRange) {
  for (const double bad : {-0.1, kInf, kNan}) {
    EXPECT_THAT(CheckOptimizer(SgdSpec{.lr = bad}),
                RefusesField("optimizer.sgd.lr", HasSubstr("expected at least 0")));
    EXPECT_THAT(CheckOptimizer(SgdSpec{.momentum = bad}),
                RefusesField("optimizer.sgd.momentum", HasSubstr("at least 0")));
    EXPECT_THAT(CheckOptimizer(SgdSpec{.weight_decay = bad}),
                RefusesField("optimizer.sgd.weight_decay", HasSubstr("at least 0")));
  }
  EXPECT_THAT(CheckOptimizer(SgdSpec{.dampening = kNan}),
              RefusesField("optimizer.sgd.dampening", HasSubstr("finite")));
}

TEST(CheckOptimizerTest, NesterovNeedsMomentumAndNoDampening) {
  for (const SgdSpec& bad :
       {SgdSpec{.nesterov = true}, SgdSpec{.momentum = 0.9, .dampening = 0.1, .nesterov = true}}) {
    EXPECT_THAT(CheckOptimizer(bad), RefusesField("optimizer.sgd.nesterov", HasSubstr("needs")));
  }
}

TEST(CheckOptimizerTest, AdamWsFieldsOutOfRange) {
  EXPECT_THAT(CheckOptimizer(AdamWSpec{.lr = -1}),
              RefusesField("optimizer.adamw.lr", HasSubstr("-1 is out of range")));
  for (const double bad : {-0.1, 1.0, kNan}) {
    EXPECT_THAT(CheckOptimizer(AdamWSpec{.beta1 = bad}),
                RefusesField("optimizer.adamw.beta1", HasSubstr("expected 0 to less than 1")));
    EXPECT_THAT(CheckOptimizer(AdamWSpec{.beta2 = bad}),
                RefusesField("optimizer.adamw.beta2", HasSubstr("expected 0 to less than 1")));
  }
  EXPECT_THAT(CheckOptimizer(AdamWSpec{.eps = -1}),
              RefusesField("optimizer.adamw.eps", HasSubstr("at least 0")));
  EXPECT_THAT(CheckOptimizer(AdamWSpec{.weight_decay = kInf}),
              RefusesField("optimizer.adamw.weight_decay", HasSubstr("at least 0")));
}

TEST(WithHyperParametersTest, ReplaceWhatIsGiven) {
  const SgdSpec sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5};
  BRAID_ASSERT_OK_AND_ASSIGN(const OptimizerSpec same, WithHyperParameters(sgd, {}));
  EXPECT_EQ(std::get<SgdSpec>(same).lr, 0.1);
  BRAID_ASSERT_OK_AND_ASSIGN(
      const OptimizerSpec changed,
      WithHyperParameters(sgd, {.lr = 0.2, .weight_decay = 0, .momentum = 0.8}));
  EXPECT_EQ(std::get<SgdSpec>(changed).lr, 0.2);
  EXPECT_EQ(std::get<SgdSpec>(changed).weight_decay, 0);
  EXPECT_EQ(std::get<SgdSpec>(changed).momentum, 0.8);
  BRAID_ASSERT_OK_AND_ASSIGN(const OptimizerSpec adamw,
                             WithHyperParameters(AdamWSpec{.beta1 = 0.5}, {.lr = 0.2}));
  EXPECT_EQ(std::get<AdamWSpec>(adamw).lr, 0.2);
  EXPECT_EQ(std::get<AdamWSpec>(adamw).beta1, 0.5);
}

TEST(WithHyperParametersTest, NameTheFieldThatIsWrong) {
  EXPECT_THAT(WithHyperParameters(SgdSpec{}, {.lr = -1}),
              RefusesField("hyper_parameters.lr", HasSubstr("-1")));
  EXPECT_THAT(WithHyperParameters(AdamWSpec{}, {.weight_decay = kNan}),
              RefusesField("hyper_parameters.weight_decay", HasSubstr("nan")));
  EXPECT_THAT(WithHyperParameters(AdamWSpec{}, {.momentum = 0.9}),
              RefusesField("hyper_parameters.momentum", HasSubstr("AdamW has none")));
}

TEST(WithHyperParametersTest, MomentumIsNotTurnedOnOrOff) {
  EXPECT_THAT(WithHyperParameters(SgdSpec{.momentum = 0}, {.momentum = 0.9}),
              RefusesField("hyper_parameters.momentum", HasSubstr("turned on or off")));
  EXPECT_THAT(WithHyperParameters(SgdSpec{.momentum = 0.9}, {.momentum = 0}),
              RefusesField("hyper_parameters.momentum", HasSubstr("turned on or off")));
  EXPECT_THAT(WithHyperParameters(SgdSpec{}, {.momentum = 0}), IsOk());
}

}  // namespace
}  // namespace braid
