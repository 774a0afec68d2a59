#include "server/admission/drain_time.h"

#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr auto kSilent = [](absl::Duration) {};
// A wait that never succeeds.
bool Never(absl::Duration timeout) {
  absl::SleepFor(timeout);
  return false;
}

TEST(DrainTimeTest, ReturnsTrueWhenTheWaitSucceeds) {
  const absl::Notification hurry;
  DrainTime time(absl::InfiniteDuration(), &hurry);
  int asked = 0;
  EXPECT_TRUE(time.Await([&](absl::Duration) { return ++asked == 3; }, kSilent));
  EXPECT_EQ(asked, 3);
}

TEST(DrainTimeTest, ReturnsFalseAtTheDeadline) {
  const absl::Notification hurry;
  const absl::Time start = absl::Now();
  DrainTime time(absl::Milliseconds(150), &hurry);
  EXPECT_FALSE(time.Await(Never, kSilent));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(150));
}

TEST(DrainTimeTest, WithoutTimeCallsWaitOnce) {
  const absl::Notification hurry;
  DrainTime time(absl::ZeroDuration(), &hurry);
  EXPECT_TRUE(time.Await([](absl::Duration) { return true; }, kSilent));
  EXPECT_FALSE(time.Await([](absl::Duration) { return false; }, kSilent));
}

TEST(DrainTimeTest, HurryShortensTheDeadline) {
  absl::Notification hurry;
  DrainTime time(absl::Hours(1), &hurry);
  std::thread impatient([&] { hurry.Notify(); });
  const absl::Time start = absl::Now();
  EXPECT_FALSE(time.Await(Never, kSilent));
  EXPECT_GE(absl::Now() - start, DrainTime::kHurryTime);
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  impatient.join();
}

TEST(DrainTimeTest, HurryDoesNotExtendTheDeadline) {
  absl::Notification hurry;
  hurry.Notify();
  const absl::Time start = absl::Now();
  DrainTime time(absl::Milliseconds(50), &hurry);
  EXPECT_FALSE(time.Await(Never, kSilent));
  EXPECT_LT(absl::Now() - start, DrainTime::kHurryTime);
}

}  // namespace
}  // namespace braid
