// What Loss::Create() and Loss::PickTarget() let through.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/loss.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig Config() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 8;
  config.outputs = {{"logits", DataType::kFp32, {3}},
                    {"probs", DataType::kFp32, {3}},
                    {"ids", DataType::kInt64, {}}};
  return config;
}

absl::StatusOr<Loss> Create(const LossSpec& spec) { return Loss::Create(spec, Config()); }

TEST(LossCreateTest, FillsInTheDefaults) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = "cross_entropy"}));
  EXPECT_EQ(loss.spec().output, "logits");
  EXPECT_EQ(loss.spec().target, "target");
  EXPECT_EQ(loss.spec().reduction, Reduction::kMean);
  EXPECT_EQ(loss.spec().ignore_index, -100);
  EXPECT_EQ(loss.output_index(), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss mse, Create({.name = "mse", .target = "y"}));
  EXPECT_EQ(mse.spec().target, "y");
  EXPECT_EQ(mse.spec().ignore_index, std::nullopt);
}

TEST(LossCreateTest, TakesTheOutputByName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Loss loss, Create({.name = "mse", .output = "probs"}));
  EXPECT_EQ(loss.output_index(), 1);
}

TEST(LossCreateTest, RefusesUnknownNames) {
  for (const char* name : {"", "CrossEntropy", "nll"}) {
    EXPECT_THAT(Create({.name = name}),
                RefusesField("loss.name", HasSubstr("expected cross_entropy or mse")));
  }
  EXPECT_THAT(Create({.name = "mse", .output = "y"}),
              RefusesField("loss.output", AllOf(HasSubstr("'m' has no output 'y'"),
                                                HasSubstr("'logits', 'probs', 'ids'"))));
}

TEST(LossCreateTest, RefusesAnOutputWithoutGradient) {
  EXPECT_THAT(
      Create({.name = "mse", .output = "ids"}),
      RefusesField("loss.output", AllOf(HasSubstr("'ids' is INT64"), HasSubstr("floating-point"))));
}

TEST(LossCreateTest, RefusesParametersOutOfRange) {
  for (const double smoothing : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(Create({.name = "cross_entropy", .label_smoothing = smoothing}),
                RefusesField("loss.label_smoothing", HasSubstr("expected 0 to 1")));
  }
  EXPECT_THAT(Create({.name = "cross_entropy", .label_smoothing = 1}), IsOk());
}

TEST(LossCreateTest, RefusesParametersOfAnotherLoss) {
  EXPECT_THAT(Create({.name = "mse", .ignore_index = 1}),
              RefusesField("loss.ignore_index", HasSubstr("cross_entropy's")));
  EXPECT_THAT(Create({.name = "mse", .label_smoothing = 0.1}),
              RefusesField("loss.label_smoothing", HasSubstr("cross_entropy's")));
}

class PickTargetTest : public ::testing::Test {
 protected:
  absl::StatusOr<HostTensor> Pick(const std::vector<HostTensor>& targets) const {
    return loss_.PickTarget(targets, 4);
  }
  const Loss loss_ = *Create({.name = "mse", .target = "y"});
};

TEST_F(PickTargetTest, IsTheOneOfItsName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const HostTensor target, Pick({MakeRows("y", 4, 0)}));
  EXPECT_EQ(target.name, "y");
}

TEST_F(PickTargetTest, MissingUnknownOrTwice) {
  EXPECT_THAT(Pick({}), RefusesField("targets", HasSubstr("target 'y' is missing")));
  EXPECT_THAT(Pick({MakeRows("z", 4, 0)}),
              RefusesField("targets[0].name",
                           AllOf(HasSubstr("no target 'z'"), HasSubstr("it takes 'y'"))));
  EXPECT_THAT(Pick({MakeRows("y", 4, 0), MakeRows("z", 4, 0)}),
              RefusesField("targets[1].name", HasSubstr("'z'")));
  EXPECT_THAT(Pick({MakeRows("y", 4, 0), MakeRows("y", 4, 0)}),
              RefusesField("targets[1].name", HasSubstr("there twice")));
}

TEST_F(PickTargetTest, HasTheInputsRows) {
  EXPECT_THAT(Pick({MakeRows("y", 5, 0)}),
              RefusesField("targets[0].shape", AllOf(HasSubstr("[5, 1]"), HasSubstr("4 rows"))));
  EXPECT_THAT(Pick({MakeHost<float>("y", {}, {1})}),
              RefusesField("targets[0].shape", HasSubstr("[]")));
}

}  // namespace
}  // namespace braid
