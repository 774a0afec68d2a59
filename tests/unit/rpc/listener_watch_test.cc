#include "server/rpc/listener_watch.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/port_sockets.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/loopback_socket.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class ListenerWatchTest : public ::testing::Test {
 protected:
  // A connection that nobody has accepted.
  void Wait(const LoopbackSocket& client) const {
    EXPECT_EQ(client.Connect(port_), 0);
    // The last word of the handshake may be on its way.
    ASSERT_TRUE(
        Eventually([this] { return WaitingConnections(listener_.descriptor(), port_) == 1; }));
  }

  const LoopbackSocket listener_;
  const int port_ = listener_.Listen();
};

TEST_F(ListenerWatchTest, WhereNobodyComesNothingIsWrong) {
  ListenerWatch watch(port_);
  for (int look = 0; look < 10 * ListenerWatch::kLooks; ++look) {
    ASSERT_THAT(watch.Look(0), IsOk());
  }
}

TEST_F(ListenerWatchTest, AListenerThatIsShutDownIsMissed) {
  ListenerWatch watch(port_);
  ASSERT_THAT(watch.Look(0), IsOk());
  StopListening(port_);
  EXPECT_THAT(watch.Look(0),
              StatusIs(kUnavailable, HasSubstr(absl::StrCat("port ", port_, " is not listened"))));
}

TEST_F(ListenerWatchTest, ConnectionsThatNobodyAcceptsAreMissed) {
  ListenerWatch watch(port_);
  const LoopbackSocket client;
  Wait(client);
  for (int look = 1; look < ListenerWatch::kLooks; ++look) {
    ASSERT_THAT(watch.Look(0), IsOk());
  }
  EXPECT_THAT(watch.Look(0), StatusIs(kUnavailable, HasSubstr("1 connections to port")));
}

TEST_F(ListenerWatchTest, WhoIsBusyAcceptingIsNotMissed) {
  ListenerWatch watch(port_);
  const LoopbackSocket client;
  Wait(client);
  for (int look = 0; look < 10 * ListenerWatch::kLooks; ++look) {
    ASSERT_THAT(watch.Look(/*accept_calls=*/look / (ListenerWatch::kLooks - 1)), IsOk());
  }
}

}  // namespace
}  // namespace braid
