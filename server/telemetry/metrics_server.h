// HTTP endpoints for monitoring: /metrics in Prometheus's text format, and the probes /healthz
// (live) and /readyz (ready), which return 200, or 503 with the reason.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/telemetry/health.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/metrics.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace braid {

// Serves until it is destroyed. Thread-safe.
class MetricsServer {
 public:
  // Port 0 chooses a free port. UNAVAILABLE if the address cannot be bound. `health` must outlive
  // the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& host, int port,
                                                               const Metrics& metrics,
                                                               const Health& health);

  // Adds a source to /metrics.
  void Add(std::shared_ptr<prometheus::Collectable> source) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes a source. Blocks until no scrape uses it.
  void Remove(const std::shared_ptr<prometheus::Collectable>& source) ABSL_LOCKS_EXCLUDED(mu_);

  int port() const { return http_->port(); }

 private:
  struct Source {
    explicit Source(std::shared_ptr<prometheus::Collectable> served)
        : collectable(std::move(served)) {}

    absl::Mutex mu;
    std::shared_ptr<prometheus::Collectable> collectable
        ABSL_GUARDED_BY(mu);  // nullptr once removed
  };

  MetricsServer() = default;

  HttpReply Scrape() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::vector<std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> scrapes_{0};  // running

  // Last member: its handlers use the others.
  std::unique_ptr<HttpServer> http_;
};

}  // namespace braid
