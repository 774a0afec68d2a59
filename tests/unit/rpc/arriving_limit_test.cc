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

// So many calls each; their ids are 10, 11, 12, …
std::vector<ArrivingLimit::Connection> Connections(const std::vector<int64_t>& arriving) {
  std::vector<ArrivingLimit::Connection> connections;
  int64_t id = 10;
  for (const int64_t calls : arriving) {
    connections.push_back({id++, calls});
  }
  return connections;
}

TEST(ArrivingLimitTest, SoManyMayBeOnTheirWayForEver) {
  ArrivingLimit limit(kMost);
  for (const auto later : {0s, 60s, 3600s}) {
    EXPECT_THAT(limit.TooMany(Connections({60, 40}), kStart + later), IsEmpty());
  }
}

TEST(ArrivingLimitTest, MoreMayBeForAWhile) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany(Connections({60, 41}), kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({60, 41}), kStart + ArrivingLimit::kPatience - 1ms),
              IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({60, 41}), kStart + ArrivingLimit::kPatience),
              ElementsAre(0));
}

TEST(ArrivingLimitTest, OnceThereAreFewTheWhileBeginsAnew) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany(Connections({101}), kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({100}), kStart + 9s), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({101}), kStart + 10s), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({101}), kStart + 19s), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({101}), kStart + 20s), ElementsAre(0));
}

TEST(ArrivingLimitTest, ManyTimesAsManyAreTooManyAtOnce) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany(Connections({ArrivingLimit::kAtOnce * kMost}), kStart), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({ArrivingLimit::kAtOnce * kMost + 1}), kStart),
              ElementsAre(0));
}

TEST(ArrivingLimitTest, ThoseWithMostGoFirstAndNoMoreThanHaveTo) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany(Connections({1, 300, 50, 0, 250, 40}), kStart), ElementsAre(1, 4));
}

TEST(ArrivingLimitTest, OneThatIsEndedCallByCallTakesNoOtherWithIt) {
  ArrivingLimit limit(kMost);
  EXPECT_THAT(limit.TooMany(Connections({300, 50, 40}), kStart), IsEmpty());
  const auto end = kStart + ArrivingLimit::kPatience;
  EXPECT_THAT(limit.TooMany(Connections({300, 50, 40}), end), ElementsAre(0));
  EXPECT_THAT(limit.TooMany(Connections({30, 50, 40}), end + 1s), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({0, 50, 40}), end + 2s), IsEmpty());
}

TEST(ArrivingLimitTest, OneThatCouldNotBeEndedCountsAgainLater) {
  ArrivingLimit limit(kMost);
  const int64_t many = (ArrivingLimit::kAtOnce + 1) * kMost;
  EXPECT_THAT(limit.TooMany(Connections({many}), kStart), ElementsAre(0));
  EXPECT_THAT(limit.TooMany(Connections({many}), kStart + 1s), IsEmpty());
  EXPECT_THAT(limit.TooMany(Connections({many}), kStart + ArrivingLimit::kPatience),
              ElementsAre(0));
}

}  // namespace
}  // namespace braid
