#include "server/telemetry/metrics_server.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"

namespace braid {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& host,
                                                                     int port,
                                                                     const Metrics& metrics) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(absl::StrCat(host, ":", port));
    exposer->RegisterCollectable(metrics.registry());
    const int bound = exposer->GetListeningPorts().front();
    return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(exposer), bound));
  } catch (const std::exception&) {
    // The HTTP library's message says no more than that.
    return absl::UnavailableError(absl::StrCat("--metrics_port: cannot listen on ", host, ":", port,
                                               "; is the port in use?"));
  }
}

MetricsServer::MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, int port)
    : exposer_(std::move(exposer)), port_(port) {}

MetricsServer::~MetricsServer() = default;

void MetricsServer::Add(const std::shared_ptr<prometheus::Collectable>& source) {
  exposer_->RegisterCollectable(source);
}

void MetricsServer::Remove(const std::shared_ptr<prometheus::Collectable>& source) {
  exposer_->RemoveCollectable(source);
}

}  // namespace braid
