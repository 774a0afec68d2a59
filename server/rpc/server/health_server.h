// grpc.health.v1 on a separate plaintext port, for probes, if the main port requires TLS or
// credentials.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/telemetry/health.h"

namespace braid {

// Thread-safe. Serves until destroyed; the destructor ends open calls.
class HealthServer {
 public:
  // port: 0 for any free port. `health` outlives the server. UNAVAILABLE if the address cannot be
  // bound.
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
