// A TCP socket of the loopback interface, for tests of who listens, connects and is accepted.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace braid {

// Closed at the end.
class LoopbackSocket {
 public:
  // `flags`: of the socket, such as SOCK_NONBLOCK.
  static int Make(int flags = 0) { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0); }

  explicit LoopbackSocket(int descriptor = Make()) : descriptor_(descriptor) {}
  ~LoopbackSocket() { close(descriptor_); }
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;

  // At a free port, which it returns.
  int Listen() const {
    const sockaddr_in address = Address(0);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(descriptor_, 64), 0);
    return Port();
  }
  int descriptor() const { return descriptor_; }
  int Port() const {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  // 0, or errno.
  int Connect(int port) const {
    const sockaddr_in address = Address(port);
    const bool connected =
        connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    return connected ? 0 : errno;
  }
  int Accept() const { return accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC); }
  // 0, or errno.
  int Send() const {
    return send(descriptor_, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : errno;
  }
  int64_t SendWhatFits() const {
    const std::string block(1 << 16, 'x');
    int64_t sent = 0;
    while (true) {
      const ssize_t bytes = send(descriptor_, block.data(), block.size(), MSG_DONTWAIT);
      if (bytes < 0) {
        EXPECT_TRUE(errno == EAGAIN || errno == EWOULDBLOCK) << errno;
        return sent;
      }
      sent += bytes;
    }
  }
  void Receive(int64_t bytes) const {
    std::string block(1 << 16, ' ');
    while (bytes > 0) {
      const ssize_t received = recv(descriptor_, block.data(), block.size(), 0);
      ASSERT_GT(received, 0);
      bytes -= received;
    }
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
