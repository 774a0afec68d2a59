// TLS and authentication settings of a client.
#pragma once

#include <optional>
#include <string>

namespace braid::client {

// Certificates and keys as PEM text.
struct Tls {
  // Certificate authorities that may sign the server's certificate. Default: the system's.
  std::string ca = {};
  // Client certificate and private key, for a server with --tls_client_ca. Set both or neither.
  std::string certificate = {};
  std::string key = {};
};

struct Security {
  // Default: plaintext.
  std::optional<Tls> tls = {};
  // Bearer token sent with each call, for a server with --auth_tokens. Sent in plaintext without
  // TLS.
  std::string token = {};
};

}  // namespace braid::client
