#include "server/telemetry/health.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

// Listener that records the latest state.
class Told final : public HealthListener {
 public:
  void OnHealthChange(const std::string& name, bool serving) override { states[name] = serving; }
  std::map<std::string, bool> states;
};

TEST(HealthTest, StartsLiveAndNotReady) {
  Health health;
  EXPECT_THAT(health.liveness(), IsOk());
  EXPECT_THAT(health.readiness(), StatusIs(kUnavailable, HasSubstr("the server is starting")));
}

TEST(HealthTest, NotifiesListenersOfStateAndChanges) {
  Health health;
  health.SetModel("a", true);
  Told told;
  health.Add(&told);
  EXPECT_THAT(told.states, UnorderedElementsAre(Pair("", false), Pair("liveness", true),
                                                Pair("readiness", false), Pair("a", false)));
  health.SetReady();
  EXPECT_THAT(told.states, UnorderedElementsAre(Pair("", true), Pair("liveness", true),
                                                Pair("readiness", true), Pair("a", true)));
  health.SetModel("b", false);
  EXPECT_THAT(told.states, ::testing::Contains(Pair("b", false)));
  health.Remove(&told);
  health.SetModel("b", true);
  EXPECT_THAT(told.states, ::testing::Contains(Pair("b", false)));
}

TEST(HealthTest, NoModelIsServedUnlessReady) {
  Health health;
  Told told;
  health.Add(&told);
  health.SetReady();
  health.SetModel("a", true);
  health.SetNotReady("is shutting down");
  EXPECT_THAT(told.states, UnorderedElementsAre(Pair("", false), Pair("liveness", true),
                                                Pair("readiness", false), Pair("a", false)));
  EXPECT_THAT(health.readiness(), StatusIs(kUnavailable, HasSubstr("is shutting down")));
  EXPECT_THAT(health.liveness(), IsOk());
}

TEST(HealthTest, ALostDeviceEndsLivenessAndReadinessForGood) {
  Health health;
  Told told;
  health.Add(&told);
  health.SetModel("a", true);
  health.SetReady();
  const auto nothing = UnorderedElementsAre(Pair("", false), Pair("liveness", false),
                                            Pair("readiness", false), Pair("a", false));
  health.MarkDeviceLost("device cuda:0 is lost: Xid 79");
  EXPECT_THAT(told.states, nothing);
  health.SetReady();
  health.MarkDeviceLost("device cuda:1 is lost: Xid 79");
  EXPECT_THAT(told.states, nothing);
  // The first reason is kept.
  EXPECT_THAT(health.liveness(), StatusIs(kUnavailable, HasSubstr("cuda:0")));
  EXPECT_THAT(health.readiness(), StatusIs(kUnavailable, HasSubstr("cuda:0")));
}

TEST(HealthTest, IgnoresModelsWithReservedNames) {
  Health health;
  Told told;
  health.Add(&told);
  health.SetReady();
  health.SetModel("readiness", false);
  health.SetModel("liveness", false);
  EXPECT_TRUE(told.states["readiness"]);
  EXPECT_TRUE(told.states["liveness"]);
}

}  // namespace
}  // namespace braid
