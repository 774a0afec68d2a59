// Tests CheckSchedule().
#include "server/training/optim/schedule_spec.h"

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

template <typename Kind>
absl::Status Check(const Kind& kind, const OptimizerSpec& optimizer = SgdSpec{}) {
  return CheckSchedule({{}, kind}, optimizer);
}

TEST(CheckScheduleTest, DefaultsAndLimitsAreFine) {
  EXPECT_THAT(CheckSchedule({}, SgdSpec{}), IsOk());
  EXPECT_THAT(Check(StepScheduleSpec{}), IsOk());
  EXPECT_THAT(Check(MultiStepScheduleSpec{{0, 3, 3, 9}}), IsOk());
  EXPECT_THAT(Check(ExponentialScheduleSpec{1.01}), IsOk());
  EXPECT_THAT(Check(CosineScheduleSpec{}), IsOk());
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1, .pct_start = 0}), IsOk());
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1, .pct_start = 1}, AdamSpec{}), IsOk());
  EXPECT_THAT(Check(PlateauScheduleSpec{}), IsOk());
  EXPECT_THAT(CheckSchedule({{.steps = 5, .start_factor = 1}, {}}, SgdSpec{}), IsOk());
}

TEST(CheckScheduleTest, StepsFieldsOutOfRange) {
  EXPECT_THAT(Check(StepScheduleSpec{.step_size = 0}),
              RefusesField("schedule.step.step_size", HasSubstr("missing or 0")));
  EXPECT_THAT(Check(StepScheduleSpec{.gamma = -1}),
              RefusesField("schedule.step.gamma", HasSubstr("at least 0")));
}

TEST(CheckScheduleTest, MilestonesAscend) {
  EXPECT_THAT(Check(MultiStepScheduleSpec{{5, 3}}),
              RefusesField("schedule.multi_step.milestones[1]", HasSubstr("3 after 5")));
  EXPECT_THAT(Check(MultiStepScheduleSpec{{-1}}),
              RefusesField("schedule.multi_step.milestones[0]", HasSubstr("at least 0")));
  EXPECT_THAT(Check(MultiStepScheduleSpec{{1}, kNan}),
              RefusesField("schedule.multi_step.gamma", HasSubstr("at least 0")));
}

TEST(CheckScheduleTest, ExponentialsAndCosinesFieldsOutOfRange) {
  for (const double bad : {0.0, -1.0, kInf, kNan}) {
    EXPECT_THAT(Check(ExponentialScheduleSpec{bad}),
                RefusesField("schedule.exponential.gamma", HasSubstr("above 0")));
  }
  EXPECT_THAT(Check(CosineScheduleSpec{.t_max = 0}),
              RefusesField("schedule.cosine.t_max", HasSubstr("at least 1")));
  EXPECT_THAT(Check(CosineScheduleSpec{.eta_min = -1}),
              RefusesField("schedule.cosine.eta_min", HasSubstr("at least 0")));
}

TEST(CheckScheduleTest, OneCyclesFieldsOutOfRange) {
  const auto refuses = [](OneCycleScheduleSpec spec, const std::string& field) {
    EXPECT_THAT(Check(spec), RefusesField("schedule.one_cycle." + field, HasSubstr("expected")));
  };
  refuses({}, "max_lr");
  refuses({.max_lr = kInf}, "max_lr");
  refuses({.max_lr = 1, .total_steps = 0}, "total_steps");
  refuses({.max_lr = 1, .pct_start = 1.1}, "pct_start");
  refuses({.max_lr = 1, .div_factor = 0}, "div_factor");
  refuses({.max_lr = 1, .final_div_factor = kNan}, "final_div_factor");
  refuses({.max_lr = 1, .base_momentum = -1}, "base_momentum");
  refuses({.max_lr = 1, .max_momentum = 0}, "max_momentum");
}

TEST(CheckScheduleTest, OneCycleCyclesWhatTheOptimizerHas) {
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1, .base_momentum = 1}, AdamSpec{}),
              RefusesField("schedule.one_cycle.base_momentum", HasSubstr("less than 1")));
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1, .max_momentum = 1}, AdamSpec{}),
              RefusesField("schedule.one_cycle.max_momentum", HasSubstr("less than 1")));
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1}, AdagradSpec{}),
              RefusesField("schedule.one_cycle.cycle_momentum", HasSubstr("Adagrad")));
  EXPECT_THAT(Check(OneCycleScheduleSpec{.max_lr = 1, .cycle_momentum = false}, AdagradSpec{}),
              IsOk());
}

TEST(CheckScheduleTest, PlateausFieldsOutOfRange) {
  const auto refuses = [](const PlateauScheduleSpec& spec, const std::string& field) {
    EXPECT_THAT(Check(spec), RefusesField("schedule.plateau." + field, HasSubstr("range")));
  };
  refuses({.interval = 0}, "interval");
  refuses({.factor = 0}, "factor");
  refuses({.factor = 1}, "factor");
  refuses({.patience = -1}, "patience");
  refuses({.threshold = -1}, "threshold");
  refuses({.cooldown = -1}, "cooldown");
  refuses({.min_lr = kNan}, "min_lr");
  refuses({.eps = kInf}, "eps");
}

TEST(CheckScheduleTest, WarmupsFieldsOutOfRange) {
  EXPECT_THAT(CheckSchedule({{.steps = -1}, {}}, SgdSpec{}),
              RefusesField("schedule.warmup.steps", HasSubstr("at least 0")));
  for (const double bad : {0.0, 1.1, kNan}) {
    EXPECT_THAT(CheckSchedule({{.steps = 1, .start_factor = bad}, {}}, SgdSpec{}),
                RefusesField("schedule.warmup.start_factor", HasSubstr("at most 1")));
  }
}

TEST(CheckScheduleTest, OneCycleHasItsOwnWarmup) {
  EXPECT_THAT(CheckSchedule({{.steps = 1}, OneCycleScheduleSpec{.max_lr = 1}}, SgdSpec{}),
              RefusesField("schedule.warmup", HasSubstr("one_cycle")));
}

TEST(CyclesMomentumTest, OneCycleDoesUnlessItSaysNot) {
  EXPECT_TRUE(CyclesMomentum({{}, OneCycleScheduleSpec{}}));
  EXPECT_FALSE(CyclesMomentum({{}, OneCycleScheduleSpec{.cycle_momentum = false}}));
  EXPECT_FALSE(CyclesMomentum({}));
}

}  // namespace
}  // namespace braid
