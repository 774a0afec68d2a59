// How a client knows the server, and how the server knows the client.
#pragma once

#include <optional>
#include <string>

namespace braid::client {

// All in PEM.
struct Tls {
  // The authorities that the server's certificate may be of. Default: the system's.
  std::string ca = {};
  // The client's own, both or neither, for a server with --tls_client_ca.
  std::string certificate = {};
  std::string key = {};
};

struct Security {
  // Default: plaintext.
  std::optional<Tls> tls = {};
  // Sent with each call, for a server with --auth_tokens. Without TLS everybody on the way reads
  // it.
  std::string token = {};
};

}  // namespace braid::client
