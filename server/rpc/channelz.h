// What gRPC counts of its servers and connections, for its own diagnosis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace braid {

struct Counted {
  int64_t started = 0;
  int64_t succeeded = 0;
  int64_t failed = 0;  // counted when gRPC is done with it

  int64_t unsuccessful() const { return started - succeeded; }
  int64_t open() const { return started - succeeded - failed; }
};

struct CountedServer {
  int64_t id = 0;
  // One that was given up before its message had come counts as open for ever.
  Counted calls;
};

struct CountedConnection {
  int64_t id = 0;
  std::string name;
  Counted streams;
  int port = 0;              // at this end
  std::string peer_address;  // of 4 or 16 bytes
  int peer_port = 0;

  // The other end as calls name it, "ipv4:10.0.0.7:41234".
  absl::string_view peer() const;
};

// The gRPC servers of the process.
std::vector<CountedServer> CountedServers();

// Calls `visit` with the connections of the server `id`.
void ForEachConnection(int64_t server, absl::FunctionRef<void(const CountedConnection&)> visit);

}  // namespace braid
