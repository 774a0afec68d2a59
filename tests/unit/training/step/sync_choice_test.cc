#include "server/training/step/sync_choice.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::Each;

constexpr int kMeasured = 18;  // updates after which it is decided

// Returns the choices of `updates` updates, where all-reduce takes `all_reduce` and the other way 2
// s.
std::vector<bool> Choices(SyncChoice* choice, int updates, absl::Duration all_reduce) {
  std::vector<bool> choices;
  for (int u = 0; u < updates; ++u) {
    choices.push_back(choice->all_reduce());
    choice->Record(choices.back() ? all_reduce : absl::Seconds(2));
  }
  return choices;
}

TEST(SyncChoiceTest, WhatIsAskedForIsDone) {
  SyncChoice all_reduce(SyncMode::kAllReduce, /*measure=*/true);
  EXPECT_THAT(Choices(&all_reduce, 2 * kMeasured, absl::Seconds(9)), Each(true));
  SyncChoice broadcast(SyncMode::kReduceBroadcast, /*measure=*/true);
  EXPECT_THAT(Choices(&broadcast, 2 * kMeasured, absl::Seconds(1)), Each(false));
}

TEST(SyncChoiceTest, AutoIsAllReduceWhereItIsNotMeasured) {
  SyncChoice choice(SyncMode::kAuto, /*measure=*/false);
  EXPECT_THAT(Choices(&choice, 2 * kMeasured, absl::Seconds(9)), Each(true));
}

TEST(SyncChoiceTest, AutoTriesBothAndTakesTheFaster) {
  for (const bool faster : {true, false}) {
    SyncChoice choice(SyncMode::kAuto, /*measure=*/true);
    const absl::Duration time = absl::Seconds(faster ? 1 : 3);
    const std::vector<bool> tried = Choices(&choice, kMeasured, time);
    EXPECT_EQ(std::count(tried.begin(), tried.end(), true), kMeasured / 2);
    EXPECT_THAT(Choices(&choice, kMeasured, time), Each(faster));
  }
}

// One that was slow, or the first ones, which warm up, do not decide.
TEST(SyncChoiceTest, TheFastestOfEachCounts) {
  SyncChoice choice(SyncMode::kAuto, /*measure=*/true);
  for (int u = 0; u < kMeasured; ++u) {
    const bool all_reduce = choice.all_reduce();
    const bool disturbed = u == 7 || u == 9;
    absl::Duration time = all_reduce ? absl::Seconds(disturbed ? 100 : 1) : absl::Seconds(2);
    if (u < 2) {
      time = all_reduce ? absl::Seconds(10) : absl::Milliseconds(1);
    }
    choice.Record(time);
  }
  EXPECT_TRUE(choice.all_reduce());
}

}  // namespace
}  // namespace braid
