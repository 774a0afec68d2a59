// HTTP endpoints for monitoring: /metrics in Prometheus's text format, a page for people at /,
// which shows /status.json, and the probes /healthz (live) and /readyz (ready), which return 200,
// or 503 with the reason.
#pragma once

#include <atomic>
#include <functional>
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

  // Serves the JSON that `read` returns as /status.json; without it, or after nullptr, 503. HTTP
  // threads call `read`, several at a time. Blocks until no thread uses the function before.
  void SetStatus(std::function<std::string()> read) ABSL_LOCKS_EXCLUDED(status_mu_);

  int port() const { return http_->port(); }

 private:
  struct Source {
    explicit Source(std::shared_ptr<prometheus::Collectable> served)
        : collectable(std::move(served)) {}

    absl::Mutex mu;
    std::shared_ptr<prometheus::Collectable> collectable
        ABSL_GUARDED_BY(mu);  // nullptr once removed
  };

  explicit MetricsServer(const Health* health) : health_(health) {}

  HttpReply Scrape() ABSL_LOCKS_EXCLUDED(mu_);
  HttpReply ReadStatus() ABSL_LOCKS_EXCLUDED(status_mu_);

  const Health* const health_;

  absl::Mutex mu_;
  std::vector<std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> scrapes_{0};  // running

  absl::Mutex status_mu_;
  std::function<std::string()> read_status_ ABSL_GUARDED_BY(status_mu_);  // nullptr: no status
  std::atomic<int> status_reads_{0};                                      // running

  // Last member: its handlers use the others.
  std::unique_ptr<HttpServer> http_;
};

}  // namespace braid
