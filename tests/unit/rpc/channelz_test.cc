#include "server/rpc/channelz.h"

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(CountedTest, WhatDidNotSucceedIsOpenUntilItHasFailed) {
  const Counted counted = {.started = 10, .succeeded = 4, .failed = 5};
  EXPECT_EQ(counted.unsuccessful(), 6);
  EXPECT_EQ(counted.open(), 1);
}

TEST(CountedConnectionTest, ThePeerIsNamedAsCallsNameIt) {
  CountedConnection connection;
  connection.name = "chttp2 ipv6:%5B::1%5D:41234";
  EXPECT_EQ(connection.peer(), "ipv6:%5B::1%5D:41234");
  connection.name = "ipv4:10.0.0.7:41234";
  EXPECT_EQ(connection.peer(), "ipv4:10.0.0.7:41234");
  connection.name = "";
  EXPECT_EQ(connection.peer(), "");
}

}  // namespace
}  // namespace braid
