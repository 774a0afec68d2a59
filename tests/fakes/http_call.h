// Sends raw bytes to an HTTP server, for requests that no HTTP client would send.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace braid {

// A connection to a port of this machine.
class HttpCall {
 public:
  explicit HttpCall(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience = {30, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~HttpCall() { close(socket_); }
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  void Send(std::string_view bytes) {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Returns all bytes until the server closes the connection.
  std::string Receive() {
    std::string text;
    char buffer[4096];
    ssize_t bytes = 0;
    while ((bytes = recv(socket_, buffer, sizeof(buffer), 0)) > 0) {
      text.append(buffer, static_cast<size_t>(bytes));
    }
    return text;
  }

 private:
  const int socket_;
};

inline std::string Ask(int port, std::string_view method, std::string_view path) {
  HttpCall call(port);
  call.Send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: braid\r\n\r\n");
  return call.Receive();
}

}  // namespace braid
