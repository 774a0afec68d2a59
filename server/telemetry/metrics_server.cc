#include "server/telemetry/metrics_server.h"

#include <iterator>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/status_page.h"

namespace braid {
namespace {

// Leave threads for probes if a driver or the disk blocks.
constexpr int kScrapes = 2;
constexpr int kStatusReads = 2;
static_assert(kScrapes + kStatusReads + 2 == HttpServer::kThreads);

HttpReply Unavailable(absl::string_view why) {
  HttpReply reply;
  reply.code = 503;
  reply.body = absl::StrCat(why, "\n");
  return reply;
}

// Calls `make`, unless `most` such calls are running.
template <typename Make>
HttpReply AtMost(int most, std::atomic<int>* running, absl::string_view what, Make make) {
  const absl::Cleanup done = [running] { --*running; };
  if (++*running > most) {
    return Unavailable(absl::StrCat("too many ", what, " at once (at most ", most, ")"));
  }
  return make();
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
  std::unique_ptr<MetricsServer> server(new MetricsServer(&health));
  server->Add(metrics.registry());
  MetricsServer* const raw = server.get();
  std::map<std::string, HttpServer::Page> pages = {
      {"/metrics",
       [raw] {
         return AtMost(kScrapes, &raw->scrapes_, "scrapes", [raw] { return raw->Scrape(); });
       }},
      {"/status.json",
       [raw] {
         return AtMost(kStatusReads, &raw->status_reads_, "reads of the status",
                       [raw] { return raw->ReadStatus(); });
       }},
      {"/healthz", [&health] { return ProbeReply(health.liveness()); }},
      {"/readyz", [&health] { return ProbeReply(health.readiness()); }}};
  for (const StatusPageFile& file : StatusPageFiles()) {
    pages[std::string(file.path)] = [&file] {
      return HttpReply{200, std::string(file.content_type), std::string(file.content)};
    };
  }
  auto http = HttpServer::Create(host, port, std::move(pages));
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

void MetricsServer::SetStatus(std::function<std::string()> read) {
  const absl::MutexLock lock(&status_mu_);
  read_status_ = std::move(read);
}

HttpReply MetricsServer::ReadStatus() {
  const absl::ReaderMutexLock lock(&status_mu_);
  if (read_status_ == nullptr) {
    const absl::Status state = health_->readiness();
    return Unavailable(state.ok() ? "there is no status" : state.message());
  }
  return {200, "application/json", read_status_()};
}

HttpReply MetricsServer::Scrape() {
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
