#include "server/rpc/accept_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/port_sockets.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/loopback_socket.h"

namespace braid {
namespace {

constexpr rlim_t kLimit = 256;

// This process may have kLimit descriptors. At the end it is as it was.
class AcceptLimitTest : public ::testing::Test {
 protected:
  AcceptLimitTest() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit = {.rlim_cur = kLimit, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~AcceptLimitTest() override {
    Free();
    setrlimit(RLIMIT_NOFILE, &before_);
  }

  // Takes all descriptors below `end`.
  void TakeBelow(int64_t end) {
    while (true) {
      const int taken = dup(STDERR_FILENO);
      if (taken < 0) {
        EXPECT_EQ(errno, EMFILE);
        return;
      }
      if (taken >= end) {
        close(taken);
        return;
      }
      taken_.push_back(taken);
    }
  }
  void Free() {
    for (const int taken : taken_) {
      close(taken);
    }
    taken_.clear();
  }
  // Connects all of `clients`.
  template <typename Clients>
  void Connect(const Clients& clients) const {
    for (const LoopbackSocket& client : clients) {
      EXPECT_EQ(client.Connect(port_), 0);
    }
    const auto count = static_cast<int64_t>(std::size(clients));
    // The last word of a handshake may be on its way.
    ASSERT_TRUE(
        Eventually([&] { return WaitingConnections(listener_.descriptor(), port_) == count; }));
  }
  // As gRPC does. The descriptor, or -errno.
  int Accept() const {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    const int accepted = accept4(listener_.descriptor(), reinterpret_cast<sockaddr*>(&peer), &size,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted < 0) {
      return -errno;
    }
    EXPECT_EQ(peer.sin_family, AF_INET);
    EXPECT_EQ(size, sizeof(peer));
    return accepted;
  }

  const LoopbackSocket listener_{LoopbackSocket::Make(SOCK_NONBLOCK)};
  const int port_ = listener_.Listen();

 private:
  rlimit before_ = {};
  std::vector<int> taken_;
};

TEST_F(AcceptLimitTest, AnEighthIsLeftToOthersAndHalfOfItToOtherPorts) {
  EXPECT_EQ(DescriptorsBeforeRefusal(1024, true), 896);
  EXPECT_EQ(DescriptorsBeforeRefusal(1024, false), 960);
  EXPECT_EQ(DescriptorsBeforeRefusal(1 << 20, true), (1 << 20) - 256);
  EXPECT_EQ(DescriptorsBeforeRefusal(1 << 20, false), (1 << 20) - 128);
}

TEST_F(AcceptLimitTest, ConnectionsThatWouldTakeTheLastDescriptorsAreClosed) {
  LimitAccepting(port_);
  const LoopbackSocket clients[3];
  Connect(clients);
  TakeBelow(DescriptorsBeforeRefusal(kLimit, true) - 1);
  const int64_t refused = RefusedConnections();
  const int64_t calls = AcceptCalls();

  const int accepted = Accept();
  EXPECT_EQ(accepted, DescriptorsBeforeRefusal(kLimit, true) - 1);
  EXPECT_EQ(Accept(), -EAGAIN);

  EXPECT_EQ(RefusedConnections() - refused, 2);
  EXPECT_EQ(AcceptCalls() - calls, 2);
  EXPECT_TRUE(clients[1].Closed());
  EXPECT_TRUE(clients[2].Closed());
  close(accepted);
}

TEST_F(AcceptLimitTest, AnotherPortMayTakeSomeOfThem) {
  LimitAccepting(port_ + 1);
  const LoopbackSocket clients[1];
  Connect(clients);
  TakeBelow(DescriptorsBeforeRefusal(kLimit, true));
  const int64_t calls = AcceptCalls();
  const int accepted = Accept();
  EXPECT_EQ(accepted, DescriptorsBeforeRefusal(kLimit, true));
  EXPECT_EQ(AcceptCalls(), calls);
  close(accepted);
}

// gRPC would never accept again.
TEST_F(AcceptLimitTest, WithoutAnyDescriptorAConnectionIsClosedAndNothingFails) {
  LimitAccepting(port_);
  const LoopbackSocket clients[2];
  TakeBelow(kLimit);
  EXPECT_EQ(Accept(), -EAGAIN);  // nobody is there
  Connect(clients);
  const int64_t refused = RefusedConnections();

  EXPECT_EQ(Accept(), -EAGAIN);

  EXPECT_EQ(RefusedConnections() - refused, 2);
  for (const LoopbackSocket& client : clients) {
    EXPECT_TRUE(client.Closed());
  }
  Free();
  const LoopbackSocket later[1];
  Connect(later);
  const int accepted = Accept();
  EXPECT_GE(accepted, 0);
  close(accepted);
}

}  // namespace
}  // namespace braid
