#include "server/rpc/reset_limit.h"

#include <chrono>

#include "gtest/gtest.h"

namespace braid {
namespace {

using namespace std::chrono_literals;

constexpr int kStreams = 1024;
constexpr int64_t kAtOnce = static_cast<int64_t>(RecentResets::kAtOnce) + kStreams;
constexpr int64_t kEachSecond = static_cast<int64_t>(RecentResets::kEachSecond);

TEST(RecentResetsTest, SoManyAtOnceAreLetPass) {
  RecentResets resets;
  EXPECT_FALSE(resets.TooMany(kAtOnce, kAtOnce, 100ms, kStreams));
  EXPECT_TRUE(resets.TooMany(kAtOnce + 500, 500, 100ms, kStreams));
}

TEST(RecentResetsTest, SoManyEachSecondAreLetPassForEver) {
  RecentResets resets;
  for (int64_t second = 1; second <= 3600; ++second) {
    ASSERT_FALSE(resets.TooMany(second * kEachSecond, kEachSecond, 1s, kStreams));
  }
}

TEST(RecentResetsTest, MoreEachSecondAreTooManyAfterAWhile) {
  RecentResets resets;
  int64_t second = 1;
  while (!resets.TooMany(second * 2 * kEachSecond, 2 * kEachSecond, 1s, kStreams)) {
    ASSERT_LT(++second, 10);
  }
  EXPECT_GT(second, 1);
}

// All connections together had fewer since they were last looked at.
TEST(RecentResetsTest, WhatALongLivedConnectionHadBeforeDoesNotCount) {
  RecentResets resets;
  EXPECT_FALSE(resets.TooMany(1000 * kAtOnce, 600, 1h, kStreams));
  EXPECT_FALSE(resets.TooMany(1000 * kAtOnce + 600, 600, 100ms, kStreams));
}

TEST(RecentResetsTest, CallsThatSucceedAfterAllDoNotCount) {
  RecentResets resets;
  int64_t open = 0;
  for (int round = 0; round < 100; ++round) {
    open = open == 0 ? kAtOnce : 0;
    ASSERT_FALSE(resets.TooMany(open, kAtOnce, 100ms, kStreams));
  }
}

}  // namespace
}  // namespace braid
