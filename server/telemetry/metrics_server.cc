#include "server/telemetry/metrics_server.h"

#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace braid {
namespace {

// Leaves threads for probes if a driver blocks scrapes.
constexpr int kScrapes = HttpServer::kThreads - 2;

HttpReply Unavailable(absl::string_view why) {
  HttpReply reply;
  reply.code = 503;
  reply.body = absl::StrCat(why, "\n");
  return reply;
}

HttpReply ProbeReply(const absl::Status& state) {
  if (!state.ok()) {
    return Unavailable(state.message());
  }
  HttpReply reply;
  reply.body = "ok\n";
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& host,
                                                                     int port,
                                                                     const Metrics& metrics,
                                                                     const Health& health) {
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  server->Add(metrics.registry());
  auto http =
      HttpServer::Create(host, port,
                         {{"/metrics", [raw = server.get()] { return raw->Scrape(); }},
                          {"/healthz", [&health] { return ProbeReply(health.liveness()); }},
                          {"/readyz", [&health] { return ProbeReply(health.readiness()); }}});
  if (!http.ok()) {
    return absl::UnavailableError(absl::StrCat("--metrics_port: ", http.status().message()));
  }
  server->http_ = *std::move(http);
  return server;
}

void MetricsServer::Add(std::shared_ptr<prometheus::Collectable> source) {
  const absl::MutexLock lock(&mu_);
  sources_.push_back(std::make_shared<Source>(std::move(source)));
}

void MetricsServer::Remove(const std::shared_ptr<prometheus::Collectable>& source) {
  std::vector<std::shared_ptr<Source>> sources;
  {
    const absl::MutexLock lock(&mu_);
    sources = sources_;
  }
  for (const std::shared_ptr<Source>& known : sources) {
    const absl::MutexLock lock(&known->mu);
    if (known->collectable == source) {
      known->collectable = nullptr;
    }
  }
}

HttpReply MetricsServer::Scrape() {
  const absl::Cleanup done = [this] { --scrapes_; };
  if (++scrapes_ > kScrapes) {
    return Unavailable(absl::StrCat("too many scrapes at once (at most ", kScrapes, ")"));
  }
  std::vector<std::shared_ptr<Source>> sources;
  {
    const absl::MutexLock lock(&mu_);
    sources = sources_;
  }
  std::vector<prometheus::MetricFamily> families;
  for (const std::shared_ptr<Source>& source : sources) {
    const absl::ReaderMutexLock lock(&source->mu);
    if (source->collectable == nullptr) {
      continue;
    }
    std::vector<prometheus::MetricFamily> more = source->collectable->Collect();
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = prometheus::TextSerializer().Serialize(families);
  return reply;
}

}  // namespace braid
