#include "server/rpc/inference/infer.h"

#include <chrono>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(DeadlineTest, WithoutADeadlineIsInfinite) {
  const auto none = std::chrono::system_clock::time_point::max();
  EXPECT_EQ(DeadlineOf(none), absl::InfiniteFuture());
  const auto one = std::chrono::system_clock::from_time_t(1'000'000'000);
  EXPECT_EQ(DeadlineOf(one), absl::FromUnixSeconds(1'000'000'000));
}

}  // namespace
}  // namespace braid
