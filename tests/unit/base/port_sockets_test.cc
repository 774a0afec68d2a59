#include "server/base/port_sockets.h"

#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/loopback_socket.h"

namespace braid {
namespace {

using Socket = LoopbackSocket;

TEST(PortSocketsTest, NobodyConnectsWhereNobodyListensAnyMore) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket other_listener;
  const int other_port = other_listener.Listen();
  const Socket before;
  ASSERT_EQ(before.Connect(port), 0);
  const Socket accepted(listener.Accept());

  StopListening(port);

  const Socket after;
  EXPECT_EQ(after.Connect(port), ECONNREFUSED);
  const Socket elsewhere;
  EXPECT_EQ(elsewhere.Connect(other_port), 0);
  const int64_t sent = accepted.SendWhatFits();
  EXPECT_GT(sent, 0);
  before.Receive(sent);
}

TEST(PortSocketsTest, WhatNobodyReadsIsUndelivered) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket client;
  ASSERT_EQ(client.Connect(port), 0);
  const Socket accepted(listener.Accept());
  EXPECT_EQ(UndeliveredBytes(port), 0);

  const int64_t sent = accepted.SendWhatFits();

  EXPECT_GT(UndeliveredBytes(port), 0);
  EXPECT_LE(UndeliveredBytes(port), sent);
  client.Receive(sent);
  StopListening(port);
  // The last acknowledgement may be on its way.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (UndeliveredBytes(port) > 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(UndeliveredBytes(port), 0);
}

TEST(PortSocketsTest, AllConnectionsAreEndedReadOrNot) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket stuck_client;
  ASSERT_EQ(stuck_client.Connect(port), 0);
  const Socket stuck(listener.Accept());
  const Socket idle_client;
  ASSERT_EQ(idle_client.Connect(port), 0);
  const Socket idle(listener.Accept());
  EXPECT_GT(stuck.SendWhatFits(), 0);

  EndAllConnections(port);

  EXPECT_EQ(stuck.Send(), EPIPE);
  EXPECT_EQ(idle.Send(), EPIPE);
  const Socket later;
  EXPECT_EQ(later.Connect(port), 0);  // it still listens
}

TEST(PortSocketsTest, OnlyTheConnectionWithThatOtherEndIsEnded) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket client;
  ASSERT_EQ(client.Connect(port), 0);
  const Socket ended(listener.Accept());
  const Socket other_client;
  ASSERT_EQ(other_client.Connect(port), 0);
  const Socket other(listener.Accept());
  const std::string loopback("\x7F\0\0\x01", 4);

  EXPECT_FALSE(EndConnection(port, std::string("\x7F\0\0\x02", 4), client.Port()));
  EXPECT_FALSE(EndConnection(client.Port(), loopback, client.Port()));
  EXPECT_EQ(ended.Send(), 0);

  EXPECT_TRUE(EndConnection(port, loopback, client.Port()));

  EXPECT_NE(ended.Send(), 0);
  EXPECT_EQ(other.Send(), 0);
}

TEST(PortSocketsTest, AnIPv4ClientOfAnIPv6SocketHasEitherAddress) {
  const std::string v4("\x7F\0\0\x01", 4);
  for (const std::string& address : {v4, std::string(10, '\0') + "\xFF\xFF" + v4}) {
    const Socket listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int port = listener.ListenToAll();
    const Socket client;
    ASSERT_EQ(client.Connect(port), 0);
    const Socket accepted(listener.Accept());
    ASSERT_EQ(accepted.Send(), 0);

    EXPECT_TRUE(EndConnection(port, address, client.Port()));

    EXPECT_NE(accepted.Send(), 0);
  }
}

TEST(PortSocketsTest, SeveralAreEndedTogether) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket clients[3];
  std::vector<std::unique_ptr<Socket>> accepted;
  for (const Socket& client : clients) {
    ASSERT_EQ(client.Connect(port), 0);
    accepted.push_back(std::make_unique<Socket>(listener.Accept()));
  }
  const std::string loopback("\x7F\0\0\x01", 4);

  EXPECT_EQ(EndConnections(port, {{loopback, clients[0].Port()},
                                  {loopback, clients[2].Port()},
                                  {std::string("\x7F\0\0\x02", 4), clients[1].Port()}}),
            2);

  EXPECT_NE(accepted[0]->Send(), 0);
  EXPECT_EQ(accepted[1]->Send(), 0);
  EXPECT_NE(accepted[2]->Send(), 0);
}

TEST(PortSocketsTest, WhoListensIsFoundAndWhatWaitsIsCounted) {
  const Socket listener;
  const int port = listener.Listen();
  const Socket before;
  ASSERT_EQ(before.Connect(port), 0);
  const Socket accepted(listener.Accept());
  EXPECT_EQ(Listeners(port), std::vector<int>{listener.descriptor()});
  EXPECT_EQ(WaitingConnections(listener.descriptor(), port), 0);

  const Socket waiting[2];
  for (const Socket& client : waiting) {
    ASSERT_EQ(client.Connect(port), 0);
  }
  // The last word of a handshake may be on its way.
  EXPECT_TRUE(Eventually([&] { return WaitingConnections(listener.descriptor(), port) == 2; }));
  EXPECT_EQ(WaitingConnections(listener.descriptor(), port + 1), std::nullopt);
  EXPECT_EQ(WaitingConnections(accepted.descriptor(), port), std::nullopt);

  StopListening(port);

  EXPECT_EQ(WaitingConnections(listener.descriptor(), port), std::nullopt);
  EXPECT_EQ(Listeners(port), std::vector<int>());
}

}  // namespace
}  // namespace braid
