#include "server/rpc/reset_limit.h"

#include <chrono>
#include <vector>

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

// One server whose calls have not succeeded, and its connections with as many streams.
std::vector<CountedServer> ServerWith(int64_t calls) {
  return {{.id = 1, .calls = {.started = calls}}};
}

CountedConnection ConnectionWith(int64_t id, int64_t streams) {
  return {.id = id, .name = {}, .streams = {.started = streams}, .peer_address = {}};
}

TEST(ResetLimitTest, FewMoreCallsAreNoReasonToLook) {
  ResetLimit limit(kStreams);
  EXPECT_FALSE(limit.WorthLooking(ServerWith(500)));
  EXPECT_FALSE(limit.WorthLooking(ServerWith(0)));
  EXPECT_TRUE(limit.WorthLooking(ServerWith(600)));
}

TEST(ResetLimitTest, OnlyTheConnectionThatHasTooManyIsNamed) {
  ResetLimit limit(kStreams);
  const auto too_many = limit.TooMany(ServerWith(kAtOnce + 600),
                                      {ConnectionWith(7, 100), ConnectionWith(8, kAtOnce + 500)});
  ASSERT_EQ(too_many.size(), 1);
  EXPECT_EQ(too_many[0].id, 8);
}

TEST(ResetLimitTest, OfAConnectionThatIsGoneNothingIsKept) {
  ResetLimit limit(kStreams);
  EXPECT_TRUE(limit.TooMany(ServerWith(kAtOnce), {ConnectionWith(8, kAtOnce)}).empty());
  EXPECT_TRUE(limit.TooMany(ServerWith(kAtOnce), {}).empty());
  EXPECT_TRUE(limit.TooMany(ServerWith(2 * kAtOnce), {ConnectionWith(8, kAtOnce + 500)}).empty());
}

}  // namespace
}  // namespace braid
