#include "server/rpc/arriving_limit.h"

#include <chrono>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMost = 100;
const std::chrono::steady_clock::time_point kStart{1h};

TEST(ArrivingLimitTest, SoManyMayBeOnTheirWayForEver) {
  ArrivingLimit limit(kMost);
  for (const auto later : {0s, 60s, 3600s}) {
    EXPECT_THAT(limit.TooMany({60, 40}, kStart + later), IsEmpty());
  }
}

TEST(ArrivingLimitTest, MoreMayBeForAWhile) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany({60, 41}, kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany({60, 41}, kStart + ArrivingLimit::kPatience - 1ms), IsEmpty());
  EXPECT_THAT(limit.TooMany({60, 41}, kStart + ArrivingLimit::kPatience), ElementsAre(0));
}

TEST(ArrivingLimitTest, OnceThereAreFewTheWhileBeginsAnew) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany({101}, kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany({100}, kStart + 9s), IsEmpty());
  EXPECT_THAT(limit.TooMany({101}, kStart + 10s), IsEmpty());
  EXPECT_THAT(limit.TooMany({101}, kStart + 19s), IsEmpty());
  EXPECT_THAT(limit.TooMany({101}, kStart + 20s), ElementsAre(0));
}

TEST(ArrivingLimitTest, ManyTimesAsManyAreTooManyAtOnce) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany({ArrivingLimit::kAtOnce * kMost}, kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany({ArrivingLimit::kAtOnce * kMost + 1}, kStart), ElementsAre(0));
}

TEST(ArrivingLimitTest, ThoseWithMostGoFirstAndNoMoreThanHaveTo) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany({1, 300, 50, 0, 250, 40}, kStart), ElementsAre(1, 4));
}

}  // namespace
}  // namespace braid
