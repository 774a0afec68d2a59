// Tests CheckOptimizer().
#include "server/training/optim/optimizer_spec.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(CheckOptimizerTest, DefaultsAndLimitsAreFine) {
  EXPECT_THAT(CheckOptimizer(SgdSpec{}), IsOk());
  EXPECT_THAT(CheckOptimizer(SgdSpec{.lr = 0, .dampening = -1}), IsOk());
  EXPECT_THAT(CheckOptimizer(SgdSpec{.momentum = 0.9, .nesterov = true}), IsOk());
  EXPECT_THAT(CheckOptimizer(AdamSpec{}), IsOk());
  EXPECT_THAT(CheckOptimizer(AdamSpec{.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0}), IsOk());
  EXPECT_THAT(CheckOptimizer(RmsPropSpec{}), IsOk());
  EXPECT_THAT(CheckOptimizer(RmsPropSpec{.alpha = 1.5, .eps = 0, .momentum = 2}), IsOk());
  EXPECT_THAT(CheckOptimizer(AdagradSpec{}), IsOk());
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

TEST(CheckOptimizerTest, AdamsFieldsOutOfRangeByTheNameOfTheOptimizer) {
  for (const bool decoupled : {false, true}) {
    const std::string where = decoupled ? "optimizer.adamw." : "optimizer.adam.";
    const auto check = [decoupled](AdamSpec spec) {
      spec.decoupled_weight_decay = decoupled;
      return CheckOptimizer(spec);
    };
    EXPECT_THAT(check({.lr = -1}), RefusesField(where + "lr", HasSubstr("-1 is out of range")));
    for (const double bad : {-0.1, 1.0, kNan}) {
      EXPECT_THAT(check({.beta1 = bad}),
                  RefusesField(where + "beta1", HasSubstr("expected 0 to less than 1")));
      EXPECT_THAT(check({.beta2 = bad}),
                  RefusesField(where + "beta2", HasSubstr("expected 0 to less than 1")));
    }
    EXPECT_THAT(check({.eps = -1}), RefusesField(where + "eps", HasSubstr("at least 0")));
    EXPECT_THAT(check({.weight_decay = kInf}),
                RefusesField(where + "weight_decay", HasSubstr("at least 0")));
  }
}

TEST(CheckOptimizerTest, RmsPropsFieldsOutOfRange) {
  const auto refuses = [](const RmsPropSpec& spec, const std::string& field) {
    EXPECT_THAT(CheckOptimizer(spec),
                RefusesField("optimizer.rmsprop." + field, HasSubstr("at least 0")));
  };
  refuses({.lr = -1}, "lr");
  refuses({.alpha = kNan}, "alpha");
  refuses({.eps = -1}, "eps");
  refuses({.weight_decay = kInf}, "weight_decay");
  refuses({.momentum = -1}, "momentum");
}

TEST(CheckOptimizerTest, AdagradsFieldsOutOfRange) {
  const auto refuses = [](const AdagradSpec& spec, const std::string& field) {
    EXPECT_THAT(CheckOptimizer(spec),
                RefusesField("optimizer.adagrad." + field, HasSubstr("at least 0")));
  };
  refuses({.lr = -1}, "lr");
  refuses({.lr_decay = kNan}, "lr_decay");
  refuses({.weight_decay = kInf}, "weight_decay");
  refuses({.initial_accumulator_value = -1}, "initial_accumulator_value");
  refuses({.eps = -1}, "eps");
}

TEST(OptimizerNameTest, AsInTorchOptim) {
  EXPECT_EQ(OptimizerName(SgdSpec{}), "SGD");
  EXPECT_EQ(OptimizerName(AdamSpec{}), "Adam");
  EXPECT_EQ(OptimizerName(AdamSpec{.decoupled_weight_decay = true}), "AdamW");
  EXPECT_EQ(OptimizerName(RmsPropSpec{}), "RMSprop");
  EXPECT_EQ(OptimizerName(AdagradSpec{}), "Adagrad");
}

}  // namespace
}  // namespace braid
