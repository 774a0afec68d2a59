#include "server/training/step/grad_scaler.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(GradScalerTest, GrowsAfterSoManyGoodUpdatesInARow) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .growth_interval = 3});
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32);
  for (int i = 0; i < 3; ++i) {
    scaler.Update(false);
  }
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(GradScalerTest, AnOverflowBacksOffAndBeginsTheCountAnew) {
  GradScaler scaler({.init_scale = 8, .backoff_factor = 0.25, .growth_interval = 2});
  scaler.Update(false);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(GradScalerTest, TheScaleIsAFloat32ThatDoesNotGrowToInfinity) {
  GradScaler scaler({.init_scale = 0.1, .growth_factor = 1e30, .growth_interval = 1});
  EXPECT_EQ(scaler.scale(), 0.1F);
  scaler.Update(false);
  const double grown = scaler.scale();
  EXPECT_EQ(grown, static_cast<float>(0.1F * 1e30));
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), grown);
}

TEST(GradScalerTest, GoesOnFromItsState) {
  const GradScalerSpec spec = {.init_scale = 8, .growth_interval = 3};
  GradScaler first(spec);
  first.Update(true);
  first.Update(false);
  first.Update(false);
  EXPECT_THAT(first.state(), ElementsAre(4, 2));
  GradScaler second(spec);
  ASSERT_THAT(second.Load(first.state()), IsOk());
  EXPECT_EQ(second.scale(), 4);
  second.Update(false);
  EXPECT_EQ(second.scale(), 8);
}

TEST(GradScalerTest, StatesThatAreNoneChangeNothing) {
  GradScaler scaler({.init_scale = 8});
  for (const std::vector<double>& bad : {std::vector<double>{},
                                         {4},
                                         {4, 1, 1},
                                         {4, 0.5},
                                         {4, -1},
                                         {4, kNan},
                                         {kNan, 1},
                                         {kInf, 1},
                                         {-1, 1}}) {
    EXPECT_THAT(scaler.Load(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  }
  EXPECT_THAT(scaler.state(), ElementsAre(8, 0));
}

TEST(CheckGradScalerTest, FieldsOutOfRange) {
  EXPECT_THAT(CheckGradScaler({}), IsOk());
  EXPECT_THAT(CheckGradScaler({.growth_interval = 1}), IsOk());
  for (const double bad : {0.0, -1.0, 1e39, kInf, kNan}) {
    EXPECT_THAT(CheckGradScaler({.init_scale = bad}),
                RefusesField("grad_scaler.init_scale", HasSubstr("above 0")));
  }
  for (const double bad : {1.0, 0.5, kInf, kNan}) {
    EXPECT_THAT(CheckGradScaler({.growth_factor = bad}),
                RefusesField("grad_scaler.growth_factor", HasSubstr("above 1")));
  }
  for (const double bad : {0.0, 1.0, kNan}) {
    EXPECT_THAT(CheckGradScaler({.backoff_factor = bad}),
                RefusesField("grad_scaler.backoff_factor", HasSubstr("below 1")));
  }
  EXPECT_THAT(CheckGradScaler({.growth_interval = 0}),
              RefusesField("grad_scaler.growth_interval", HasSubstr("at least 1")));
}

}  // namespace
}  // namespace braid
