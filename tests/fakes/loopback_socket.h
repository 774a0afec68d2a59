// A TCP socket of the loopback interface, for tests of who listens and who is accepted.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "gtest/gtest.h"

namespace braid {

// Closed at the end.
class LoopbackSocket {
 public:
  explicit LoopbackSocket(int flags = 0)
      : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {}
  ~LoopbackSocket() { close(descriptor_); }
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;

  int descriptor() const { return descriptor_; }
  // At a free port, which it returns.
  int Listen() const {
    sockaddr_in address = Address(0);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(descriptor_, any, size), 0);
    EXPECT_EQ(listen(descriptor_, 64), 0);
    EXPECT_EQ(getsockname(descriptor_, any, &size), 0);
    return ntohs(address.sin_port);
  }
  void Connect(int port) const {
    const sockaddr_in address = Address(port);
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
  }
  // Waits until the other end closes it.
  bool Closed() const {
    char byte = 0;
    const ssize_t received = recv(descriptor_, &byte, 1, 0);
    return received == 0 || (received < 0 && errno == ECONNRESET);
  }

 private:
  static sockaddr_in Address(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  const int descriptor_;
};

}  // namespace braid
