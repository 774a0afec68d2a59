// grpc.health.v1 on a port of its own, in plaintext: for probes, where the other port has TLS or
// asks who calls.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/telemetry/health.h"

namespace braid {

// Thread-safe. Serves until it is destroyed, which ends the calls that are open.
class HealthServer {
 public:
  // Port 0: a free one. UNAVAILABLE if the address cannot be bound. `health` outlives the server.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Create(const std::string& host, int port,
                                                              Health* health);
  ~HealthServer();

  int port() const;

 private:
  class Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid
