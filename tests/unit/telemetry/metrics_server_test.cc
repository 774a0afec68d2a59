#include "server/telemetry/metrics_server.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/telemetry/model_metrics.h"
#include "tests/fakes/http_call.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    auto server = MetricsServer::Create("127.0.0.1", 0, metrics_, health_);
    EXPECT_THAT(server, IsOk());
    server_ = *std::move(server);
  }
  std::string Get(std::string_view path) const { return Ask(server_->port(), "GET", path); }

  Metrics metrics_;
  Health health_;
  std::unique_ptr<MetricsServer> server_;
};

// Source that blocks until it is released.
class SlowSource final : public prometheus::Collectable {
 public:
  explicit SlowSource(int scrapes) : asked(scrapes) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    asked.DecrementCount();
    answer.WaitForNotification();
    return {{"slow_total", "Help.", prometheus::MetricType::Counter, {}}};
  }
  mutable absl::BlockingCounter asked;
  absl::Notification answer;
};

TEST_F(MetricsServerTest, ProbesReturnHealth) {
  EXPECT_THAT(Get("/healthz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 503 Service Unavailable"),
                                    EndsWith("\r\n\r\nthe server is starting\n")));
  health_.SetReady();
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  health_.MarkDeviceLost("device cuda:0 is lost: Xid 79");
  for (const char* path : {"/healthz", "/readyz"}) {
    EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("cuda:0"))) << path;
  }
}

TEST_F(MetricsServerTest, ServesMetricsOfAllSources) {
  ModelMetrics model(&metrics_, "fashion");
  model.CountBatch(3);
  const auto source = std::make_shared<SlowSource>(1);
  source->answer.Notify();
  server_->Add(source);
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("Content-Type: text/plain; version=0.0.4"),
                                     HasSubstr("braid_batch_size_rows_sum{model=\"fashion\"} 3"),
                                     HasSubstr("# TYPE slow_total counter")));
}

TEST_F(MetricsServerTest, DoesNotUseARemovedSource) {
  const auto source = std::make_shared<SlowSource>(1);
  source->answer.Notify();
  server_->Add(source);
  server_->Remove(source);
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("# TYPE braid_"), Not(HasSubstr("slow_total"))));
}

TEST_F(MetricsServerTest, ProbesWorkWhileScrapesHang) {
  constexpr int kHanging = 2;
  const auto source = std::make_shared<SlowSource>(kHanging);
  server_->Add(source);
  std::vector<std::thread> scrapers;
  std::vector<std::string> replies(kHanging);
  for (std::string& reply : replies) {
    scrapers.emplace_back([this, &reply] { reply = Get("/metrics"); });
  }
  source->asked.Wait();
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/metrics"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("at most 2")));
  source->answer.Notify();
  for (std::thread& scraper : scrapers) {
    scraper.join();
  }
  EXPECT_THAT(replies, ::testing::Each(StartsWith("HTTP/1.1 200 ")));
}

TEST_F(MetricsServerTest, ServesTheStatusPage) {
  EXPECT_THAT(Get("/"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/html"),
                              HasSubstr("<noscript>"), HasSubstr("status.js")));
  EXPECT_THAT(Get("/status.js"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/javascript"),
                                       HasSubstr("fetch(\"status.json\"")));
  EXPECT_THAT(Get("/status.css"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/css"),
                                        HasSubstr("prefers-color-scheme: dark")));
}

TEST_F(MetricsServerTest, ServesTheStatusUntilItIsRemoved) {
  EXPECT_THAT(Get("/status.json"),
              AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("\r\n\r\nthe server is starting\n")));
  health_.SetReady();
  server_->SetStatus([] { return std::string("{}"); });
  EXPECT_THAT(Get("/status.json"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Type: application/json\r\n"), EndsWith("\r\n\r\n{}")));
  server_->SetStatus(nullptr);
  health_.SetNotReady("is shutting down");
  EXPECT_THAT(Get("/status.json"), EndsWith("\r\n\r\nthe server is shutting down\n"));
}

TEST_F(MetricsServerTest, ScrapesAndProbesWorkWhileReadsOfTheStatusHang) {
  constexpr int kHanging = 2;
  absl::BlockingCounter asked(kHanging);
  absl::Notification answer;
  server_->SetStatus([&] {
    asked.DecrementCount();
    answer.WaitForNotification();
    return std::string("{}");
  });
  std::vector<std::thread> readers;
  std::vector<std::string> replies(kHanging);
  for (std::string& reply : replies) {
    readers.emplace_back([this, &reply] { reply = Get("/status.json"); });
  }
  asked.Wait();
  EXPECT_THAT(Get("/status.json"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("at most 2")));
  EXPECT_THAT(Get("/metrics"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  answer.Notify();
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_THAT(replies, ::testing::Each(EndsWith("{}")));
}

TEST_F(MetricsServerTest, NamesTheFlagOfAPortInUse) {
  EXPECT_THAT(MetricsServer::Create("127.0.0.1", server_->port(), metrics_, health_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--metrics_port")));
}

}  // namespace
}  // namespace braid
