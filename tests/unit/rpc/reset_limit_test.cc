#include "server/rpc/reset_limit.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr int kStreams = 1024;
constexpr int64_t kAtOnce = static_cast<int64_t>(RecentResets::kAtOnce) + kStreams;
constexpr int64_t kEachSecond = static_cast<int64_t>(RecentResets::kEachSecond);

TEST(RecentResetsTest, SoManyAtOnceAreLetPass) {
  RecentResets resets;
  EXPECT_FALSE(resets.TooMany(kAtOnce, kAtOnce, absl::Milliseconds(100), kStreams));
  EXPECT_TRUE(resets.TooMany(kAtOnce + 500, 500, absl::Milliseconds(100), kStreams));
}

TEST(RecentResetsTest, SoManyEachSecondAreLetPassForEver) {
  RecentResets resets;
  for (int64_t second = 1; second <= 3600; ++second) {
    ASSERT_FALSE(resets.TooMany(second * kEachSecond, kEachSecond, absl::Seconds(1), kStreams));
  }
}

TEST(RecentResetsTest, MoreEachSecondAreTooManyAfterAWhile) {
  RecentResets resets;
  int64_t second = 1;
  while (!resets.TooMany(second * 2 * kEachSecond, 2 * kEachSecond, absl::Seconds(1), kStreams)) {
    ASSERT_LT(++second, 10);
  }
  EXPECT_GT(second, 1);
}

TEST(RecentResetsTest, ItIsSaidOnce) {
  RecentResets resets;
  EXPECT_TRUE(resets.TooMany(10 * kAtOnce, 10 * kAtOnce, absl::Seconds(0), kStreams));
  EXPECT_FALSE(resets.TooMany(20 * kAtOnce, 10 * kAtOnce, absl::Seconds(0), kStreams));
}

// All connections together had fewer since they were last looked at.
TEST(RecentResetsTest, WhatALongLivedConnectionHadBeforeDoesNotCount) {
  RecentResets resets;
  EXPECT_FALSE(resets.TooMany(1000 * kAtOnce, 600, absl::Hours(1), kStreams));
  EXPECT_FALSE(resets.TooMany(1000 * kAtOnce + 600, 600, absl::Milliseconds(100), kStreams));
}

TEST(RecentResetsTest, CallsThatSucceedAfterAllDoNotCount) {
  RecentResets resets;
  int64_t open = 0;
  for (int round = 0; round < 100; ++round) {
    open = open == 0 ? kAtOnce : 0;
    ASSERT_FALSE(resets.TooMany(open, kAtOnce, absl::Milliseconds(100), kStreams));
  }
}

}  // namespace
}  // namespace braid
