#include "client/cli/spec.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What is wrong with it.
template <typename T>
std::string Why(const absl::StatusOr<T>& result) {
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  return std::string(result.status().message());
}

TEST(SpecTest, LossByItsName) {
  absl::StatusOr<v1::Loss> loss = ParseLoss("mse");
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(loss->name(), "mse");
  EXPECT_FALSE(loss->has_weight());
}

TEST(SpecTest, LossWithFieldsOfEveryKind) {
  absl::StatusOr<v1::Loss> loss = ParseLoss(
      "cross_entropy:class_weights=1,2.5,1,label_smoothing=0.1,ignore_index=-1,reduction=Sum,"
      "output=logits,target=y,log_target=true,weight=2");
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_THAT(loss->class_weights(), ElementsAre(1, 2.5, 1));
  EXPECT_EQ(loss->label_smoothing(), 0.1);
  EXPECT_EQ(loss->ignore_index(), -1);
  EXPECT_EQ(loss->reduction(), v1::Loss::REDUCTION_SUM);
  EXPECT_EQ(loss->output(), "logits");
  EXPECT_EQ(loss->target(), "y");
  EXPECT_TRUE(loss->log_target());
  EXPECT_EQ(loss->weight(), 2);
}

TEST(SpecTest, LossOfTheModelHasNoName) {
  absl::StatusOr<v1::Loss> loss = ParseLoss("output=loss,weight=0.5");
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(loss->name(), "");
  EXPECT_EQ(loss->output(), "loss");
  EXPECT_EQ(loss->weight(), 0.5);
}

TEST(SpecTest, LossModuleIsReadFromItsFile) {
  const std::string path = ::testing::TempDir() + "spec_module.pt";
  std::ofstream(path, std::ios::binary) << "PK\x03\x04 module";
  absl::StatusOr<v1::Loss> loss = ParseLoss("module:module=" + path);
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(loss->module(), "PK\x03\x04 module");
  std::remove(path.c_str());
  EXPECT_THAT(Why(ParseLoss("module:module=" + path)), HasSubstr("cannot read " + path));
}

TEST(SpecTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Why(ParseLoss("mse:colour=1")),
              HasSubstr("--loss mse: \"colour\" is unknown; known: output, target, reduction"));
  EXPECT_EQ(Why(ParseLoss("mse:weight=big")), "--loss mse: weight: \"big\" is not a number");
  EXPECT_EQ(Why(ParseLoss("mse:ignore_index=0.5")),
            "--loss mse: ignore_index: \"0.5\" is not a whole number");
  EXPECT_EQ(Why(ParseLoss("mse:log_target=maybe")),
            "--loss mse: log_target: \"maybe\" is not true or false");
  EXPECT_EQ(Why(ParseLoss("mse:reduction=max")),
            "--loss mse: reduction: \"max\" is unknown; known: mean, sum");
  // A further value, of a field that takes one.
  EXPECT_THAT(Why(ParseLoss("mse:weight=1,2")), HasSubstr("\"2\" is not KEY=VALUE"));
  EXPECT_THAT(Why(ParseLoss("mse:2")), HasSubstr("\"2\" is not KEY=VALUE"));
}

TEST(SpecTest, OptimizersByPyTorchsNames) {
  for (const char* name : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "adamw"}) {
    absl::StatusOr<v1::Optimizer> optimizer = ParseOptimizer(name);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    EXPECT_NE(optimizer->kind_case(), v1::Optimizer::KIND_NOT_SET) << name;
  }
  absl::StatusOr<v1::Optimizer> adamw = ParseOptimizer("AdamW:lr=0.001,beta2=0.95,amsgrad=true");
  ASSERT_TRUE(adamw.ok()) << adamw.status();
  EXPECT_EQ(adamw->adamw().lr(), 0.001);
  EXPECT_EQ(adamw->adamw().beta2(), 0.95);
  EXPECT_TRUE(adamw->adamw().amsgrad());
  EXPECT_FALSE(adamw->adamw().has_beta1());
  EXPECT_EQ(Why(ParseOptimizer("Adan")),
            "--optimizer: \"Adan\" is unknown; known: SGD, Adam, AdamW, RMSprop, Adagrad");
  EXPECT_THAT(Why(ParseOptimizer("Adam:momentum=1")),
              HasSubstr("--optimizer Adam: \"momentum\" is unknown; known: lr, beta1, beta2"));
}

TEST(SpecTest, SchedulesByEitherName) {
  v1::Schedule schedule;
  schedule.mutable_warmup()->set_steps(5);
  ASSERT_TRUE(ParseSchedule("MultiStepLR:milestones=30,60,90,gamma=0.2", &schedule).ok());
  EXPECT_THAT(schedule.multi_step().milestones(), ElementsAre(30, 60, 90));
  EXPECT_EQ(schedule.multi_step().gamma(), 0.2);
  EXPECT_EQ(schedule.warmup().steps(), 5);
  ASSERT_TRUE(ParseSchedule("CosineAnnealingLR:T_max=100", &schedule).ok());
  EXPECT_EQ(schedule.cosine().t_max(), 100);
  ASSERT_TRUE(ParseSchedule("plateau", &schedule).ok());
  EXPECT_TRUE(schedule.has_plateau());
  const absl::Status unknown = ParseSchedule("Linear", &schedule);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("known: StepLR, MultiStepLR"));
}

TEST(SpecTest, Stages) {
  absl::StatusOr<v1::Stage> stage = ParseStage("features.0=cpu:0,cuda:1/2");
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ(stage->path(), "features.0");
  EXPECT_THAT(stage->devices(), ElementsAre("cpu:0", "cuda:1/2"));
  stage = ParseStage("=cpu:1");
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ(stage->path(), "");
  EXPECT_THAT(stage->devices(), ElementsAre("cpu:1"));
  for (const char* wrong : {"", "features", "features=", "features=cpu:0,", "features=,cpu:0"}) {
    EXPECT_THAT(Why(ParseStage(wrong)), HasSubstr("is not PATH=DEVICE")) << wrong;
  }
}

TEST(SpecTest, GroupsEndTheirPatternAtTheLastColon) {
  absl::StatusOr<v1::ParameterGroup> group = ParseGroup("^(?:a|b)=,:lr=0.01,frozen=true");
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(group->pattern(), "^(?:a|b)=,");
  EXPECT_EQ(group->lr(), 0.01);
  EXPECT_TRUE(group->frozen());
  for (const char* wrong : {"bias", ":lr=1", "bias:"}) {
    EXPECT_FALSE(ParseGroup(wrong).ok()) << wrong;
  }
}

TEST(SpecTest, SettingsFollowPaths) {
  v1::TrainingOptions options;
  ASSERT_TRUE(SetFields("--set", "sync=all_reduce,seed=18446744073709551615", &options).ok());
  ASSERT_TRUE(SetFields("--set", "clipping.norm_type=inf", &options).ok());
  ASSERT_TRUE(SetFields("--set", "schedule.warmup.start_factor=0.1", &options).ok());
  EXPECT_EQ(options.sync(), v1::SYNC_ALL_REDUCE);
  EXPECT_EQ(options.seed(), ~uint64_t{0});
  EXPECT_TRUE(std::isinf(options.clipping().norm_type()));
  EXPECT_EQ(options.schedule().warmup().start_factor(), 0.1);
  for (const char* wrong :
       {"clipping.colour=1", "seed.x=1", "stages.path=x", "clipping=1", "seed="}) {
    const absl::Status status = SetFields("--set", wrong, &options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--set: "));
  }
}

}  // namespace
}  // namespace braid::cli
