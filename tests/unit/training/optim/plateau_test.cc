#include "server/training/optim/plateau.h"

#include <limits>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// After which of `losses`, counted from 0, the learning rate is reduced.
std::vector<size_t> Reductions(Plateau& plateau, const std::vector<double>& losses) {
  std::vector<size_t> reductions;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (plateau.Advance(losses[i], std::nullopt)) {
      reductions.push_back(i);
    }
  }
  return reductions;
}

std::vector<size_t> Reductions(const PlateauScheduleSpec& spec, const std::vector<double>& losses) {
  Plateau plateau(spec);
  return Reductions(plateau, losses);
}

TEST(PlateauTest, ReducesAfterMoreBadLossesInARowThanThePatience) {
  EXPECT_THAT(Reductions({.patience = 1}, {5, 4, 4, 4, 4, 4}), ElementsAre(3, 5));
  EXPECT_THAT(Reductions({.patience = 1}, {5, 6, 4, 6, 3, 6}), IsEmpty());
  EXPECT_THAT(Reductions({.patience = 0}, {5, kNan, 4}), ElementsAre(1));
}

TEST(PlateauTest, IgnoresImprovementsBelowTheThreshold) {
  EXPECT_THAT(Reductions({.patience = 0, .threshold = 0.1}, {10, 9.1, 8.9}), ElementsAre(1));
  EXPECT_THAT(
      Reductions({.patience = 0, .threshold = 2, .absolute_threshold = true}, {10, 8.5, 7.5}),
      ElementsAre(1));
}

TEST(PlateauTest, MaximizesTheMetric) {
  EXPECT_THAT(Reductions({.maximize = true, .patience = 0, .threshold = 0.1}, {10, 10.9, 11.1, 5}),
              ElementsAre(1, 3));
  EXPECT_THAT(
      Reductions({.maximize = true, .patience = 0, .threshold = 2, .absolute_threshold = true},
                 {10, 11.5, 12.5}),
      ElementsAre(1));
}

TEST(PlateauTest, IgnoresObservationsDuringTheCooldown) {
  EXPECT_THAT(Reductions({.patience = 0, .cooldown = 2}, {1, 1, 1, 1, 1, 1, 1}), ElementsAre(1, 4));
}

TEST(PlateauTest, ObservesTheMeanOfEachInterval) {
  EXPECT_THAT(Reductions({.interval = 2, .patience = 0}, {5, 1, 1, 5, 2, 2, 9, 9}),
              ElementsAre(3, 7));
}

TEST(PlateauTest, IgnoresUnknownLosses) {
  Plateau plateau({.interval = 2, .patience = 0});
  EXPECT_THAT(Reductions(plateau, {4, 4, 5}), IsEmpty());
  EXPECT_FALSE(plateau.Advance(std::nullopt, std::nullopt));
  EXPECT_TRUE(plateau.Advance(5, std::nullopt));
}

TEST(PlateauTest, ObservesOnlyMetricsAfterTheFirst) {
  Plateau plateau({.patience = 0});
  EXPECT_THAT(Reductions(plateau, {1, 0.5}), IsEmpty());
  EXPECT_FALSE(plateau.Advance(0.1, 70));  // worse than any loss, but the first of its kind
  EXPECT_THAT(Reductions(plateau, {9, 9, 9}), IsEmpty());
  EXPECT_FALSE(plateau.Advance(std::nullopt, 60));
  EXPECT_TRUE(plateau.Advance(std::nullopt, 60));
}

TEST(PlateauTest, ReducesToTheMinimumAndByAtLeastEps) {
  const Plateau plateau({.factor = 0.5, .min_lr = 0.3, .eps = 0.01});
  EXPECT_EQ(plateau.Reduced(1), 0.5);
  EXPECT_EQ(plateau.Reduced(0.5), 0.3);
  EXPECT_EQ(plateau.Reduced(0.305), 0.305);
  EXPECT_EQ(plateau.Reduced(0.1), 0.1);  // below the least already
}

TEST(PlateauTest, ContinuesFromItsState) {
  const PlateauScheduleSpec spec = {.interval = 2, .patience = 1, .cooldown = 1};
  const std::vector<double> losses = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
  const std::vector<size_t> all = Reductions(spec, losses);
  ASSERT_EQ(all.size(), 2);
  for (size_t cut = 0; cut < losses.size(); ++cut) {
    const auto middle = losses.begin() + static_cast<std::ptrdiff_t>(cut);
    Plateau first(spec);
    std::vector<size_t> reductions = Reductions(first, {losses.begin(), middle});
    Plateau second(spec);
    ASSERT_THAT(second.Load(first.state()), IsOk());
    for (const size_t reduction : Reductions(second, {middle, losses.end()})) {
      reductions.push_back(cut + reduction);
    }
    EXPECT_EQ(reductions, all) << cut;
  }
}

TEST(PlateauTest, TheStateRecordsTheUseOfMetrics) {
  Plateau first({.patience = 0});
  first.Advance(std::nullopt, 5);
  Plateau second({.patience = 0});
  ASSERT_THAT(second.Load(first.state()), IsOk());
  EXPECT_FALSE(second.Advance(9, std::nullopt));
  EXPECT_TRUE(second.Advance(std::nullopt, 5));
}

TEST(PlateauTest, RejectsInvalidStates) {
  Plateau plateau({});
  for (const std::vector<double>& bad : {std::vector<double>{},
                                         {1, 0, 0, 0, 0},
                                         {1, -1, 0, 0, 0, 0},
                                         {1, 0, 0.5, 0, 0, 0},
                                         {1, 0, 0, 0, kNan, 0}}) {
    EXPECT_THAT(plateau.Load(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  }
  EXPECT_THAT(plateau.state(), ElementsAre(kInf, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace braid
