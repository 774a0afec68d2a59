#include "server/telemetry/metrics.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Scrape(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
}

TEST(MetricsTest, RequestsAreCountedByMethodAndCode) {
  Metrics metrics;
  metrics.CountRequest("ModelInfer", "OK", absl::Milliseconds(3));
  metrics.CountRequest("ModelInfer", "OK", absl::Milliseconds(30));
  metrics.CountRequest("ModelInfer", "NOT_FOUND", absl::Milliseconds(3));
  const std::string text = Scrape(metrics);
  EXPECT_THAT(text, HasSubstr("braid_requests_total{code=\"OK\",method=\"ModelInfer\"} 2"));
  EXPECT_THAT(text, HasSubstr("braid_requests_total{code=\"NOT_FOUND\",method=\"ModelInfer\"} 1"));
}

TEST(MetricsTest, DurationsAreAHistogramInSeconds) {
  Metrics metrics;
  metrics.CountRequest("Step", "OK", absl::Milliseconds(3));
  metrics.CountRequest("Step", "OK", absl::Milliseconds(30));
  const std::string text = Scrape(metrics);
  constexpr char kBucket[] = "braid_request_duration_seconds_bucket{method=\"Step\",le=";
  EXPECT_THAT(text, HasSubstr(std::string(kBucket) + "\"0.005\"} 1"));
  EXPECT_THAT(text, HasSubstr(std::string(kBucket) + "\"0.05\"} 2"));
  EXPECT_THAT(text, HasSubstr("braid_request_duration_seconds_count{method=\"Step\"} 2"));
}

TEST(MetricsTest, BatchesCountRowsAndSamples) {
  Metrics metrics;
  metrics.CountBatch("fashion", 3);
  metrics.CountBatch("fashion", 64);
  const std::string text = Scrape(metrics);
  EXPECT_THAT(text, HasSubstr("braid_batch_size_rows_bucket{model=\"fashion\",le=\"4\"} 1"));
  EXPECT_THAT(text, HasSubstr("braid_batch_size_rows_sum{model=\"fashion\"} 67"));
  EXPECT_THAT(text, HasSubstr("braid_inference_samples_total{model=\"fashion\"} 67"));
}

TEST(MetricsTest, TheQueueGoesUpAndDown) {
  Metrics metrics;
  metrics.AddQueuedRows("fashion", 20);
  metrics.AddQueuedRows("fashion", -13);
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_queue_rows{model=\"fashion\"} 7"));
}

TEST(MetricsTest, BusySecondsByDeviceAndPhase) {
  Metrics metrics;
  metrics.AddBusy("cpu:0", Phase::kForward, absl::Milliseconds(250));
  metrics.AddBusy("cpu:0", Phase::kForward, absl::Milliseconds(500));
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_device_busy_seconds_total{device=\"cpu:0\","
                                         "phase=\"forward\"} 0.75"));
}

TEST(MetricsTest, EveryPhaseHasANameOfItsOwn) {
  std::vector<std::string> names;
  for (int p = 0; p < kPhases; ++p) {
    names.emplace_back(PhaseName(static_cast<Phase>(p)));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("load", "copy_in", "forward", "loss", "backward",
                                            "reduce", "update", "broadcast", "copy_out"));
}

TEST(MetricsTest, TrainersHaveTheirSeriesUntilTheyAreForgotten) {
  Metrics metrics;
  metrics.CountTrainingStep("a");
  metrics.RecordLoss("a", 0.5, 20);
  metrics.RecordLoss("a", 0.25, 20);
  metrics.RecordLoss("b", 2, 1);
  EXPECT_THAT(Scrape(metrics), AllOf(HasSubstr("braid_training_steps_total{trainer=\"a\"} 1"),
                                     HasSubstr("braid_training_samples_total{trainer=\"a\"} 40"),
                                     HasSubstr("braid_training_loss{trainer=\"a\"} 0.25")));
  metrics.ForgetTrainer("a");
  EXPECT_THAT(Scrape(metrics), AllOf(Not(HasSubstr("trainer=\"a\"")),
                                     HasSubstr("braid_training_loss{trainer=\"b\"} 2")));
  metrics.RecordLoss("a", 1, 5);  // one that comes after it starts anew
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_training_samples_total{trainer=\"a\"} 5"));
}

TEST(MetricsTest, ManyThreadsCount) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 500; ++i) {
        metrics.CountRequest("Step", "OK", absl::Milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_requests_total{code=\"OK\",method=\"Step\"} 2000"));
}

}  // namespace
}  // namespace braid
