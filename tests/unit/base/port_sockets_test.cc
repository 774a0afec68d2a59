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

TEST(PortSocketsTest, RefusesConnectionsAfterStopListening) {
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

TEST(PortSocketsTest, CountsUnacknowledgedBytes) {
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
  // The last acknowledgement may be in flight.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (UndeliveredBytes(port) > 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(UndeliveredBytes(port), 0);
}

TEST(PortSocketsTest, EndsAllConnections) {
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
  EXPECT_EQ(later.Connect(port), 0);  // still listening
}

}  // namespace
}  // namespace braid
