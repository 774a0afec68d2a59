// What the machines around the server ask it over HTTP: /metrics, in Prometheus's text format, and
// for probes /healthz, is it live, and /readyz, is it ready: 200, or 503 with the reason.
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

// Thread-safe. Serves until it is destroyed.
class MetricsServer {
 public:
  // Port 0: a free one. UNAVAILABLE if the address cannot be bound. `health` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& host, int port,
                                                               const Metrics& metrics,
                                                               const Health& health);

  // From now on serves what `source` collects, too.
  void Add(std::shared_ptr<prometheus::Collectable> source) ABSL_LOCKS_EXCLUDED(mu_);

  // Serves it no more; a scrape that reads it has ended.
  void Remove(const std::shared_ptr<prometheus::Collectable>& source) ABSL_LOCKS_EXCLUDED(mu_);

  int port() const { return http_->port(); }

 private:
  struct Source {
    explicit Source(std::shared_ptr<prometheus::Collectable> served)
        : collectable(std::move(served)) {}

    absl::Mutex mu;
    std::shared_ptr<prometheus::Collectable> collectable ABSL_GUARDED_BY(mu);  // null: removed
  };

  MetricsServer() = default;

  HttpReply Scrape() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::vector<std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> scrapes_{0};  // under way

  // Last member: its pages use the others.
  std::unique_ptr<HttpServer> http_;
};

}  // namespace braid
