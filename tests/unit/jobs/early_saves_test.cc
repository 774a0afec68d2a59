#include "server/jobs/early_saves.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(EarlySavesTest, NothingIsDueWithoutACrash) {
  EarlySaves saves(/*crashed=*/false, kStart);
  EXPECT_FALSE(saves.Due(kStart + absl::Hours(1)));
}

TEST(EarlySavesTest, SavesAreDueAtGrowingIntervalsAndEndAtAMinute) {
  EarlySaves saves(/*crashed=*/true, kStart);
  absl::Time now = kStart;
  EXPECT_TRUE(saves.Due(now));
  for (absl::Duration interval = absl::Milliseconds(200); interval <= absl::Minutes(1);
       interval *= 2) {
    EXPECT_FALSE(saves.Due(now + interval - absl::Milliseconds(1)));
    now += interval;
    EXPECT_TRUE(saves.Due(now)) << interval;
  }
  EXPECT_FALSE(saves.Due(now + absl::Hours(1)));
}

}  // namespace
}  // namespace braid
