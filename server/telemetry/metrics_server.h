// Prometheus's text format over HTTP: /metrics on a port of its own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/telemetry/metrics.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace braid {

// Thread-safe. Serves until it is destroyed.
class MetricsServer {
 public:
  // Port 0: a free one. UNAVAILABLE if the address cannot be bound. `metrics` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& host, int port,
                                                               const Metrics& metrics);
  ~MetricsServer();

  // From now on serves what `source` collects, too.
  void Add(const std::shared_ptr<prometheus::Collectable>& source);

  // Serves it no more; a scrape that reads it has ended.
  void Remove(const std::shared_ptr<prometheus::Collectable>& source);

  int port() const { return port_; }

 private:
  MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, int port);

  const std::unique_ptr<prometheus::Exposer> exposer_;
  const int port_;
};

}  // namespace braid
