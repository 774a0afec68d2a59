#include "server/rpc/arrived_calls.h"

#include <memory>

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(ArrivedCallsTest, CallsCountByTheirConnectionUntilTheyAreOver) {
  ArrivedCalls calls;
  calls.Add("ipv4:10.0.0.7:1");
  calls.Add("ipv4:10.0.0.7:1");
  calls.Add("ipv4:10.0.0.7:2");
  EXPECT_EQ(calls.total(), 3);
  EXPECT_EQ(calls.Of("ipv4:10.0.0.7:1"), 2);
  EXPECT_EQ(calls.Of("ipv4:10.0.0.7:3"), 0);
  calls.Remove("ipv4:10.0.0.7:1");
  calls.Remove("ipv4:10.0.0.7:2");
  EXPECT_EQ(calls.total(), 1);
  EXPECT_EQ(calls.Of("ipv4:10.0.0.7:1"), 1);
  EXPECT_EQ(calls.Of("ipv4:10.0.0.7:2"), 0);
}

TEST(ArrivedCallsTest, ACallCountsAsLongAsItIsThere) {
  const ArrivedCalls& calls = ArrivedCalls::OfProcess();
  const int64_t before = calls.total();
  auto call = std::make_unique<ArrivedCall>("ipv4:10.0.0.8:1");
  EXPECT_EQ(call->peer(), "ipv4:10.0.0.8:1");
  EXPECT_EQ(calls.Of("ipv4:10.0.0.8:1"), 1);
  EXPECT_EQ(calls.total(), before + 1);
  call.reset();
  EXPECT_EQ(calls.Of("ipv4:10.0.0.8:1"), 0);
  EXPECT_EQ(calls.total(), before);
}

}  // namespace
}  // namespace braid
