#include "server/training/optim/schedule.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Parameters "a", "b" and "c".
ParameterGroups Groups(std::vector<ParameterGroupSpec> specs = {}) {
  return *ParameterGroups::Create(std::move(specs), {"a", "b", "c"});
}

Schedule Made(const ScheduleSpec& spec, const OptimizerSpec& optimizer = SgdSpec{.lr = 1},
              std::vector<ParameterGroupSpec> groups = {}) {
  return *Schedule::Create(spec, optimizer, Groups(std::move(groups)));
}

std::vector<GroupValues> Values(Schedule& schedule, size_t updates, size_t group = 0) {
  std::vector<GroupValues> values;
  for (size_t t = 0; t < updates; ++t) {
    values.push_back(schedule.Next({})->at(group));
    schedule.Advance(1.0, std::nullopt);
  }
  return values;
}

std::vector<double> Lrs(Schedule schedule, size_t updates, size_t group = 0) {
  std::vector<double> lrs;
  for (const GroupValues& values : Values(schedule, updates, group)) {
    lrs.push_back(values.lr);
  }
  return lrs;
}

TEST(ScheduleTest, IsConstantByDefault) {
  EXPECT_THAT(Lrs(Made({}, SgdSpec{.lr = 0.25}), 5), Each(0.25));
}

TEST(ScheduleTest, StepReducesEveryStepSizeUpdates) {
  EXPECT_THAT(Lrs(Made({{}, StepScheduleSpec{.step_size = 2, .gamma = 0.5}}), 6),
              ElementsAre(1, 1, 0.5, 0.5, 0.25, 0.25));
}

TEST(ScheduleTest, MultiStepReducesAtItsMilestonesAsOftenAsTheyAreNamed) {
  EXPECT_THAT(Lrs(Made({{}, MultiStepScheduleSpec{{1, 3, 3}, 0.5}}), 5),
              ElementsAre(1, 0.5, 0.5, 0.125, 0.125));
  EXPECT_THAT(Lrs(Made({{}, MultiStepScheduleSpec{{0}, 0.5}}), 2), ElementsAre(0.5, 0.5));
}

TEST(ScheduleTest, ExponentialReducesAtEveryUpdate) {
  EXPECT_THAT(Lrs(Made({{}, ExponentialScheduleSpec{0.5}}), 4), ElementsAre(1, 0.5, 0.25, 0.125));
}

TEST(ScheduleTest, CosineGoesDownAndUpAgain) {
  constexpr int kMax = 50;
  const std::vector<double> lrs = Lrs(Made({{}, CosineScheduleSpec{kMax, 0.25}}), 301);
  for (size_t t = 0; t < lrs.size(); ++t) {
    const double turn = std::acos(-1.0) * static_cast<double>(t) / kMax;
    EXPECT_NEAR(lrs[t], 0.25 + 0.75 * (1 + std::cos(turn)) / 2, 1e-12) << t;
  }
  EXPECT_EQ(lrs[50], 0.25);
  EXPECT_THAT(Lrs(Made({{}, CosineScheduleSpec{1, 0}}), 4),
              ElementsAre(1, 0, DoubleEq(1), DoubleNear(0, 1e-15)));
}

TEST(ScheduleTest, WarmupIsLinearAndTheScheduleBeginsAtItsEnd) {
  EXPECT_THAT(Lrs(Made({{4, 0.2}, StepScheduleSpec{.step_size = 2, .gamma = 0.5}}), 9),
              Pointwise(DoubleEq(), {0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.5, 0.5, 0.25}));
  EXPECT_THAT(Lrs(Made({{2, 0.5}, {}}), 4), Pointwise(DoubleEq(), {0.5, 0.75, 1.0, 1.0}));
}

TEST(ScheduleTest, OneCycleRaisesAndLowersTheRateAndMomentumInversely) {
  Schedule schedule = Made({{}, OneCycleScheduleSpec{.max_lr = 0.5, .total_steps = 10}});
  const std::vector<GroupValues> values = Values(schedule, 10);
  EXPECT_NEAR(values[0].lr, 0.5 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(values[0].momentum, 0.95);
  EXPECT_NEAR(values[1].lr, (0.5 / 25 + 0.5) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(values[2].lr, 0.5);  // after 3/10 of the updates
  EXPECT_DOUBLE_EQ(values[2].momentum, 0.85);
  EXPECT_NEAR(values[9].lr, 0.5 / 25 / 1e4, 1e-15);
  EXPECT_DOUBLE_EQ(values[9].momentum, 0.95);
}

TEST(ScheduleTest, OneCycleLinear) {
  EXPECT_THAT(Lrs(Made({{},
                        OneCycleScheduleSpec{.max_lr = 1,
                                             .total_steps = 6,
                                             .pct_start = 0.5,
                                             .linear = true,
                                             .div_factor = 5,
                                             .final_div_factor = 2}}),
                  6),
              Pointwise(DoubleEq(), {0.2, 0.6, 1.0, 0.7, 0.4, 0.1}));
}

TEST(ScheduleTest, OneCycleInThreePhases) {
  Schedule schedule = Made({{},
                            OneCycleScheduleSpec{.max_lr = 1,
                                                 .total_steps = 8,
                                                 .pct_start = 0.375,
                                                 .linear = true,
                                                 .cycle_momentum = false,
                                                 .div_factor = 5,
                                                 .final_div_factor = 2,
                                                 .three_phase = true}},
                           SgdSpec{.momentum = 0.5});
  const std::vector<GroupValues> values = Values(schedule, 8);
  const std::vector<double> expected = {0.2, 0.6, 1, 0.6, 0.2, 0.2 - 0.1 / 3, 0.2 - 0.2 / 3, 0.1};
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_DOUBLE_EQ(values[t].lr, expected[t]) << t;
    EXPECT_EQ(values[t].momentum, 0.5);
  }
}

TEST(ScheduleTest, OneCycleBeginsAtItsPeakWhereItsFirstPhaseIsOneUpdate) {
  EXPECT_THAT(
      Lrs(Made({{}, OneCycleScheduleSpec{.max_lr = 1, .total_steps = 4, .pct_start = 0.25}}), 1),
      ElementsAre(1));
}

TEST(ScheduleTest, OneCycleCyclesBeta1AndReplacesEveryLr) {
  Schedule schedule = Made({{}, OneCycleScheduleSpec{.max_lr = 0.5, .total_steps = 2}},
                           AdamSpec{.beta1 = 0.1}, {{.pattern = "b", .lr = 7}});
  const std::vector<GroupValues> values = *schedule.Next({});
  EXPECT_EQ(values[1].lr, values[0].lr);
  EXPECT_GT(values[0].momentum, 0.8);
}

TEST(ScheduleTest, OneCycleEnds) {
  Schedule schedule = Made({{}, OneCycleScheduleSpec{.max_lr = 0.5, .total_steps = 3}});
  Values(schedule, 3);
  EXPECT_THAT(schedule.Next({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("after 3 updates")));
}

TEST(ScheduleTest, PlateauReducesEveryGroupAfterTheWarmup) {
  Schedule schedule = Made({{2, 0.5}, PlateauScheduleSpec{.factor = 0.5, .patience = 0}},
                           SgdSpec{.lr = 1}, {{.pattern = "b", .lr = 8}});
  // The first of the constant losses that counts is that of update 2; the next is no better.
  EXPECT_THAT(Lrs(schedule, 5, 0), Pointwise(DoubleEq(), {0.5, 0.75, 1.0, 1.0, 0.5}));
  EXPECT_THAT(Lrs(schedule, 5, 1), Pointwise(DoubleEq(), {4.0, 6.0, 8.0, 8.0, 4.0}));
}

TEST(ScheduleTest, PlateauObservesTheMetric) {
  Schedule schedule = Made({{}, PlateauScheduleSpec{.factor = 0.5, .patience = 0}});
  schedule.Advance(3.0, 10);
  schedule.Advance(2.0, 10);
  EXPECT_EQ(schedule.Next({})->at(0).lr, 0.5);
}

TEST(ScheduleTest, PlateauObservesTheMetricOfASkippedUpdate) {
  Schedule schedule = Made({{1, 0.5}, PlateauScheduleSpec{.factor = 0.5, .patience = 0}});
  schedule.RecordMetric(1);  // forgotten: warming up
  schedule.Advance(std::nullopt, std::nullopt);
  schedule.RecordMetric(10);
  EXPECT_EQ(schedule.Next({})->at(0).lr, 1);
  schedule.RecordMetric(10);
  EXPECT_EQ(schedule.Next({})->at(0).lr, 0.5);
}

TEST(ScheduleTest, GroupsOverrideTheOptimizersValues) {
  Schedule schedule = Made(
      {{}, ExponentialScheduleSpec{0.5}}, SgdSpec{.lr = 1, .momentum = 0.9, .weight_decay = 0.1},
      {{.pattern = "a", .lr = 4}, {.pattern = "b", .weight_decay = 0, .momentum = 0.5}});
  schedule.Advance(1, std::nullopt);
  const std::vector<GroupValues> values = *schedule.Next({});
  ASSERT_EQ(values.size(), 3);
  EXPECT_EQ(values[0].lr, 0.5);
  EXPECT_EQ(values[0].weight_decay, 0.1);
  EXPECT_EQ(values[0].momentum, 0.9);
  EXPECT_EQ(values[1].lr, 2);
  EXPECT_EQ(values[1].weight_decay, 0.1);
  EXPECT_EQ(values[2].lr, 0.5);
  EXPECT_EQ(values[2].weight_decay, 0);
  EXPECT_EQ(values[2].momentum, 0.5);
}

TEST(ScheduleTest, UsesTheOptimizersValues) {
  EXPECT_EQ(Made({}, AdamSpec{.beta1 = 0.7, .weight_decay = 0.2}).Next({})->at(0).momentum, 0.7);
  EXPECT_EQ(Made({}, RmsPropSpec{.momentum = 0.3}).Next({})->at(0).momentum, 0.3);
  EXPECT_EQ(Made({}, AdagradSpec{.weight_decay = 0.2}).Next({})->at(0).weight_decay, 0.2);
}

TEST(ScheduleTest, ChangesApplyToOneUpdateAndNotToGroupsWithOwnValues) {
  Schedule schedule =
      Made({{}, StepScheduleSpec{.step_size = 1, .gamma = 0.5}},
           SgdSpec{.lr = 1, .momentum = 0.9, .weight_decay = 0.1},
           {{.pattern = "a", .lr = 4, .weight_decay = 0.3, .momentum = 0.2}, {.pattern = "b"}});
  const std::vector<GroupValues> values =
      *schedule.Next({.lr = 7, .weight_decay = 0.6, .momentum = 0.4});
  for (const size_t g : {0, 2}) {
    EXPECT_EQ(values[g].lr, 7);
    EXPECT_EQ(values[g].weight_decay, 0.6);
    EXPECT_EQ(values[g].momentum, 0.4);
  }
  EXPECT_EQ(values[1].lr, 4);
  EXPECT_EQ(values[1].weight_decay, 0.3);
  EXPECT_EQ(values[1].momentum, 0.2);
  schedule.Advance(1, std::nullopt);
  EXPECT_EQ(schedule.Next({})->at(0).lr, 0.5);
}

TEST(ScheduleTest, GroupLrSetsTheGroupsRates) {
  const Schedule schedule =
      Made({}, SgdSpec{.lr = 1}, {{.pattern = "a", .lr = 4}, {.pattern = "b", .frozen = true}});
  const std::vector<GroupValues> values = *schedule.Next({.lr = 7, .group_lr = {8, 9}});
  EXPECT_EQ(values[0].lr, 7);
  EXPECT_EQ(values[1].lr, 8);
  for (const std::vector<double>& bad : {std::vector<double>{8}, {8, 9, 10}}) {
    EXPECT_THAT(schedule.Next({.group_lr = bad}),
                RefusesField("hyper_parameters.group_lr", HasSubstr("for 2 parameter groups")));
  }
  EXPECT_THAT(schedule.Next({.group_lr = {1, -1}}),
              RefusesField("hyper_parameters.group_lr[1]", HasSubstr("at least 0")));
}

TEST(ScheduleTest, NamesTheWrongChange) {
  const Schedule sgd = Made({});
  EXPECT_THAT(sgd.Next({.lr = -1}), RefusesField("hyper_parameters.lr", HasSubstr("-1")));
  EXPECT_THAT(sgd.Next({.weight_decay = kNan}),
              RefusesField("hyper_parameters.weight_decay", HasSubstr("nan")));
  EXPECT_THAT(sgd.Next({.metric = 1}),
              RefusesField("hyper_parameters.metric", HasSubstr("plateau")));
  EXPECT_THAT(Made({{}, PlateauScheduleSpec{}}).Next({.metric = kNan}),
              RefusesField("hyper_parameters.metric", HasSubstr("finite")));
  EXPECT_THAT(Made({}, AdamSpec{}).Next({.momentum = 0.9}),
              RefusesField("hyper_parameters.momentum", HasSubstr("Adam has none")));
  EXPECT_THAT(Made({}, AdagradSpec{}).Next({.momentum = 0.9}),
              RefusesField("hyper_parameters.momentum", HasSubstr("Adagrad has none")));
  EXPECT_THAT(Made({}, SgdSpec{.momentum = 0.5}).Next({.momentum = -1}),
              RefusesField("hyper_parameters.momentum", HasSubstr("at least 0")));
}

TEST(ScheduleTest, RejectsTurningMomentumOnOrOff) {
  EXPECT_THAT(Made({}, SgdSpec{.momentum = 0}).Next({.momentum = 0.9}),
              RefusesField("hyper_parameters.momentum", HasSubstr("turned on or off")));
  EXPECT_THAT(Made({}, RmsPropSpec{.momentum = 0.9}).Next({.momentum = 0}),
              RefusesField("hyper_parameters.momentum", HasSubstr("turned on or off")));
  EXPECT_THAT(Made({}, SgdSpec{}).Next({.momentum = 0}), IsOk());
  // One-cycle has turned it on.
  const ScheduleSpec cycle = {{}, OneCycleScheduleSpec{.max_lr = 1, .total_steps = 5}};
  EXPECT_EQ(Made(cycle, SgdSpec{}).Next({.momentum = 0.5})->at(0).momentum, 0.5);
  EXPECT_THAT(Made(cycle, SgdSpec{}).Next({.momentum = 0}),
              RefusesField("hyper_parameters.momentum", HasSubstr("turned on or off")));
}

TEST(ScheduleTest, AGroupsMomentumNeedsAnOptimizerThatHasIt) {
  const ParameterGroups groups = Groups({{.pattern = "a"}, {.pattern = "b", .momentum = 0.5}});
  EXPECT_THAT(Schedule::Create({}, AdamSpec{}, groups),
              RefusesField("parameter_groups[1].momentum", HasSubstr("Adam has none")));
  EXPECT_THAT(Schedule::Create({}, RmsPropSpec{}, groups), IsOk());
}

TEST(ScheduleTest, CreateChecksTheSpec) {
  EXPECT_THAT(Schedule::Create({{}, CosineScheduleSpec{.t_max = 0}}, SgdSpec{}, Groups()),
              RefusesField("schedule.cosine.t_max", HasSubstr("at least 1")));
}

TEST(ScheduleTest, ContinuesFromItsStateBitForBit) {
  for (const ScheduleSpec& spec : std::vector<ScheduleSpec>{
           {},
           {{3, 0.3}, CosineScheduleSpec{7, 0.1}},
           {{}, OneCycleScheduleSpec{.max_lr = 0.5, .total_steps = 30}},
           {{2, 0.3}, PlateauScheduleSpec{.interval = 2, .factor = 0.7, .patience = 1}}}) {
    const std::vector<double> all = Lrs(Made(spec), 30);
    for (size_t cut = 0; cut < all.size(); ++cut) {
      Schedule first = Made(spec);
      Values(first, cut);
      Schedule second = Made(spec);
      ASSERT_THAT(second.Load(first.state()), IsOk());
      EXPECT_EQ(Lrs(second, all.size() - cut),
                std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(cut), all.end()));
    }
  }
}

TEST(ScheduleTest, RejectsInvalidStates) {
  Schedule plain = Made({}, SgdSpec{}, {{.pattern = "a"}});
  Schedule plateau = Made({{}, PlateauScheduleSpec{}});
  const std::vector<double> before = plateau.state();
  for (const std::vector<double>& bad :
       {std::vector<double>{}, {1}, {1, 2}, {-1, 2, 2}, {0.5, 2, 2}, {1, 2, 2, 2}}) {
    EXPECT_THAT(plain.Load(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
    EXPECT_THAT(plateau.Load(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  }
  EXPECT_THAT(plain.state(), ElementsAre(0, 1e-3, 1e-3));
  EXPECT_EQ(plateau.state(), before);
}

}  // namespace
}  // namespace braid
