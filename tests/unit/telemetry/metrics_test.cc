#include "server/telemetry/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/device_metrics.h"
#include "server/telemetry/job_metrics.h"
#include "server/telemetry/model_metrics.h"
#include "server/telemetry/trainer_metrics.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string Scrape(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
}

TEST(MetricsTest, CountsRequestsByMethodModelAndCode) {
  Metrics metrics;
  const ModelMetrics model(&metrics, "m");
  metrics.CountRequest("ModelInfer", "m", "OK", absl::Milliseconds(3));
  metrics.CountRequest("ModelInfer", "m", "OK", absl::Milliseconds(30));
  metrics.CountRequest("ModelInfer", "m", "INTERNAL", absl::Milliseconds(3));
  const std::string text = Scrape(metrics);
  constexpr char kRequests[] = "braid_requests_total{code=";
  constexpr char kMethod[] = ",method=\"ModelInfer\",model=\"m\"} ";
  EXPECT_THAT(text, AllOf(HasSubstr(absl::StrCat(kRequests, "\"OK\"", kMethod, "2")),
                          HasSubstr(absl::StrCat(kRequests, "\"INTERNAL\"", kMethod, "1"))));
}

TEST(MetricsTest, UnknownModelNamesCreateNoSeries) {
  Metrics metrics;
  for (const char* name : {"m", "../../etc", "a\nb", ""}) {
    metrics.CountRequest("ModelInfer", name, "NOT_FOUND", absl::Milliseconds(3));
  }
  const std::string text = Scrape(metrics);
  EXPECT_THAT(
      text,
      HasSubstr("braid_requests_total{code=\"NOT_FOUND\",method=\"ModelInfer\",model=\"\"} 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("etc")));
}

TEST(MetricsTest, DurationsAreAHistogramInSeconds) {
  Metrics metrics;
  metrics.CountRequest("Step", "", "OK", absl::Milliseconds(3));
  metrics.CountRequest("Step", "", "OK", absl::Milliseconds(30));
  const std::string text = Scrape(metrics);
  constexpr char kBucket[] = "braid_request_duration_seconds_bucket{method=\"Step\",model=\"\",le=";
  EXPECT_THAT(text, AllOf(HasSubstr(absl::StrCat(kBucket, "\"5e-05\"} 0")),
                          HasSubstr(absl::StrCat(kBucket, "\"0.005\"} 1")),
                          HasSubstr(absl::StrCat(kBucket, "\"0.05\"} 2")),
                          HasSubstr(absl::StrCat(kBucket, "\"300\"} 2"))));
  EXPECT_THAT(text,
              HasSubstr("braid_request_duration_seconds_count{method=\"Step\",model=\"\"} 2"));
}

// Returns the quantile as Prometheus' histogram_quantile() estimates it.
double EstimateQuantile(const prometheus::ClientMetric::Histogram& histogram, double quantile) {
  const double rank = quantile * static_cast<double>(histogram.sample_count);
  double lower = 0;
  double below = 0;
  for (const prometheus::ClientMetric::Bucket& bucket : histogram.bucket) {
    const auto count = static_cast<double>(bucket.cumulative_count);
    if (count >= rank) {
      return lower + (bucket.upper_bound - lower) * (rank - below) / (count - below);
    }
    lower = bucket.upper_bound;
    below = count;
  }
  return lower;
}

TEST(MetricsTest, RequestBucketsGiveTheNinetyNinthPercentileWithin15Percent) {
  struct Case {
    double median_ms;
    double spread;
  };
  std::vector<Case> cases = {{28, 0.045}};  // narrow: between 25 and 31 ms
  for (const double median_ms : {0.2, 0.7, 1.5, 4.0, 12.0, 28.0, 90.0, 500.0, 2000.0}) {
    cases.push_back({median_ms, 0.2});
    cases.push_back({median_ms, 0.6});
  }
  std::mt19937 random;
  for (const Case& each : cases) {
    Metrics metrics;
    std::lognormal_distribution<double> draw(std::log(each.median_ms), each.spread);
    std::vector<double> seconds;
    for (int i = 0; i < 4000; ++i) {
      seconds.push_back(draw(random) / 1e3);
      metrics.CountRequest("ModelInfer", "", "OK", absl::Seconds(seconds.back()));
    }
    std::sort(seconds.begin(), seconds.end());
    const double expected = seconds[seconds.size() * 99 / 100];
    std::vector<double> estimates;
    for (const prometheus::MetricFamily& family : metrics.registry()->Collect()) {
      if (family.name == "braid_request_duration_seconds") {
        estimates.push_back(EstimateQuantile(family.metric.at(0).histogram, 0.99));
      }
    }
    EXPECT_THAT(estimates, ElementsAre(DoubleNear(expected, 0.15 * expected)))
        << "median " << each.median_ms << " ms, spread " << each.spread;
  }
}

TEST(MetricsTest, DurationsHaveTheSameBuckets) {
  Metrics metrics;
  metrics.CountRequest("Step", "", "OK", absl::Seconds(1));
  TrainerMetrics trainer(&metrics, "t");
  trainer.RecordCheckpointPause(absl::Seconds(1));
  trainer.RecordCheckpoint(/*written=*/true, absl::Seconds(1));
  std::map<std::string, size_t> buckets;
  for (const prometheus::MetricFamily& family : metrics.registry()->Collect()) {
    if (absl::EndsWith(family.name, "_seconds") && !family.metric.empty() &&
        family.type == prometheus::MetricType::Histogram) {
      buckets[family.name] = family.metric[0].histogram.bucket.size();
    }
  }
  const size_t expected = buckets.at("braid_request_duration_seconds");
  EXPECT_EQ(buckets.at("braid_checkpoint_pause_seconds"), expected);
  EXPECT_EQ(buckets.at("braid_checkpoint_duration_seconds"), expected);
}

TEST(MetricsTest, DeniedCallsStartAtZero) {
  Metrics metrics;
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_access_denied_total{reason=\"role\"} 0"));
  metrics.CountDenied("role");
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr("braid_access_denied_total{reason=\"role\"} 1"),
                    HasSubstr("braid_access_denied_total{reason=\"no_credentials\"} 0"),
                    HasSubstr("braid_access_denied_total{reason=\"bad_credentials\"} 0")));
}

TEST(ModelMetricsTest, BatchesCountRowsAndSamples) {
  Metrics metrics;
  ModelMetrics model(&metrics, "fashion");
  model.CountBatch(3);
  model.CountBatch(64);
  const std::string text = Scrape(metrics);
  EXPECT_THAT(text, HasSubstr("braid_batch_size_rows_bucket{model=\"fashion\",le=\"4\"} 1"));
  EXPECT_THAT(text, HasSubstr("braid_batch_size_rows_sum{model=\"fashion\"} 67"));
  EXPECT_THAT(text, HasSubstr("braid_inference_samples_total{model=\"fashion\"} 67"));
}

TEST(ModelMetricsTest, TracksQueuedRows) {
  Metrics metrics;
  ModelMetrics model(&metrics, "fashion");
  model.AddQueuedRows(20);
  model.AddQueuedRows(-13);
  model.RecordQueued(absl::Milliseconds(2));
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr("braid_queue_rows{model=\"fashion\"} 7"),
                    HasSubstr("braid_queue_duration_seconds_sum{model=\"fashion\"} 0.002")));
}

TEST(ModelMetricsTest, CountsDecodedRowsAndFailures) {
  Metrics metrics;
  ModelMetrics model(&metrics, "m");
  model.CountDecoded(3, absl::Milliseconds(250));
  model.CountDecoded(1, absl::Milliseconds(250));
  model.CountDecodeFailure();
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr("braid_decode_rows_total{model=\"m\"} 4\n"),
                    HasSubstr("braid_decode_failures_total{model=\"m\"} 1\n"),
                    HasSubstr("braid_decode_busy_seconds_total{model=\"m\"} 0.5\n")));
}

TEST(ModelMetricsTest, CountsPublishedVersionsByOutcome) {
  Metrics metrics;
  ModelMetrics model(&metrics, "m");
  EXPECT_THAT(Scrape(metrics),
              HasSubstr("braid_version_writes_total{model=\"m\",outcome=\"failed\"} 0\n"));
  model.AddPendingVersions(2);
  model.AddPendingVersions(-1);
  model.CountVersion("durable", absl::Seconds(2));
  model.CountVersion("superseded", absl::Seconds(4));
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr("braid_versions_pending{model=\"m\"} 1\n"),
                    HasSubstr("braid_version_writes_total{model=\"m\",outcome=\"superseded\"} 1\n"),
                    HasSubstr("braid_version_write_duration_seconds_sum{model=\"m\"} 2\n")));
}

TEST(ModelMetricsTest, RemovesSeriesWithTheLastUserOfAModel) {
  Metrics metrics;
  const ModelMetrics other(&metrics, "other");
  std::optional<ModelMetrics> before(std::in_place, &metrics, "m");
  std::optional<ModelMetrics> after(std::in_place, &metrics, "m");
  before->AddQueuedRows(5);
  metrics.CountRequest("ModelInfer", "m", "OK", absl::Milliseconds(3));
  after.reset();
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_queue_rows{model=\"m\"} 5"));
  before.reset();
  EXPECT_THAT(Scrape(metrics), AllOf(Not(HasSubstr("model=\"m\"")), HasSubstr("model=\"other\"")));
  // A later user starts at zero.
  const ModelMetrics again(&metrics, "m");
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_queue_rows{model=\"m\"} 0"));
}

TEST(DeviceMetricsTest, BusySecondsByPhase) {
  Metrics metrics;
  DeviceMetrics device(&metrics, "cpu:0");
  device.AddBusy(Phase::kForward, absl::Milliseconds(250));
  device.AddBusy(Phase::kForward, absl::Milliseconds(500));
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_device_busy_seconds_total{device=\"cpu:0\","
                                         "phase=\"forward\"} 0.75"));
}

TEST(DeviceMetricsTest, ChunksByWork) {
  Metrics metrics;
  DeviceMetrics device(&metrics, "cpu:0");
  device.CountChunk(DeviceWork::kInference, 3);
  device.CountChunk(DeviceWork::kTraining, 40);
  device.CountChunk(DeviceWork::kTraining, 2);
  constexpr char kTraining[] = "{device=\"cpu:0\",work=\"training\"";
  constexpr char kInference[] = "{device=\"cpu:0\",work=\"inference\"";
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr(absl::StrCat("braid_device_samples_total", kTraining, "} 42")),
                    HasSubstr(absl::StrCat("braid_device_samples_total", kInference, "} 3")),
                    HasSubstr(absl::StrCat("braid_device_chunk_size_rows_count", kTraining, "} 2")),
                    HasSubstr(absl::StrCat("braid_device_chunk_size_rows_bucket", kTraining,
                                           ",le=\"2\"} 1"))));
}

TEST(DeviceMetricsTest, WaitsByWork) {
  Metrics metrics;
  DeviceMetrics device(&metrics, "cpu:0");
  device.RecordQueued(DeviceWork::kInference, absl::Milliseconds(250));
  device.RecordQueued(DeviceWork::kTraining, absl::Seconds(2));
  constexpr char kTraining[] = "{device=\"cpu:0\",work=\"training\"";
  constexpr char kInference[] = "{device=\"cpu:0\",work=\"inference\"";
  constexpr char kName[] = "braid_device_queue_duration_seconds";
  EXPECT_THAT(Scrape(metrics), AllOf(HasSubstr(absl::StrCat(kName, "_sum", kInference, "} 0.25")),
                                     HasSubstr(absl::StrCat(kName, "_sum", kTraining, "} 2"))));
}

TEST(PhaseTest, EveryPhaseHasAUniqueName) {
  std::vector<std::string> names;
  for (int p = 0; p < kPhases; ++p) {
    names.emplace_back(PhaseName(static_cast<Phase>(p)));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("load", "copy_in", "forward", "loss", "backward",
                                            "reduce", "update", "broadcast", "copy_out"));
}

TEST(TrainerMetricsTest, RemovesSeriesWithTheTrainer) {
  Metrics metrics;
  std::optional<TrainerMetrics> a(std::in_place, &metrics, "a");
  TrainerMetrics b(&metrics, "b");
  a->CountStep(absl::Milliseconds(10));
  a->RecordLoss(0.5, 20);
  a->RecordLoss(0.25, 20);
  a->AddPhase("forward", absl::Milliseconds(5));
  a->RecordCheckpoint(/*written=*/false, absl::Seconds(1));
  b.RecordLoss(2, 1);
  EXPECT_THAT(
      Scrape(metrics),
      AllOf(HasSubstr("braid_training_steps_total{trainer=\"a\"} 1"),
            HasSubstr("braid_training_samples_total{trainer=\"a\"} 40"),
            HasSubstr("braid_training_loss{trainer=\"a\"} 0.25"),
            HasSubstr("braid_training_phase_seconds_total{phase=\"forward\",trainer=\"a\"} 0.005"),
            HasSubstr("braid_checkpoints_total{outcome=\"failed\",trainer=\"a\"} 1")));
  a.reset();
  EXPECT_THAT(Scrape(metrics), AllOf(Not(HasSubstr("trainer=\"a\"")),
                                     HasSubstr("braid_training_loss{trainer=\"b\"} 2")));
  a.emplace(&metrics, "a");  // a later trainer starts at zero
  a->RecordLoss(1, 5);
  EXPECT_THAT(Scrape(metrics), HasSubstr("braid_training_samples_total{trainer=\"a\"} 5"));
}

TEST(TrainerMetricsTest, UnknownValuesAreAbsent) {
  Metrics metrics;
  TrainerMetrics trainer(&metrics, "a");
  EXPECT_THAT(Scrape(metrics), AllOf(HasSubstr("braid_training_skipped_steps_total"),
                                     Not(HasSubstr("braid_training_loss")),
                                     Not(HasSubstr("braid_training_gradient_norm")),
                                     Not(HasSubstr("braid_checkpoint_last_written"))));
  trainer.SetGradientNorm(3);
  trainer.SetLastCheckpoint(absl::FromUnixSeconds(1500000000));
  EXPECT_THAT(
      Scrape(metrics),
      AllOf(
          HasSubstr("braid_training_gradient_norm{trainer=\"a\"} 3"),
          HasSubstr("braid_checkpoint_last_written_timestamp_seconds{trainer=\"a\"} 1500000000")));
}

TEST(JobMetricsTest, SeriesStartAtZero) {
  Metrics metrics;
  EXPECT_THAT(Scrape(metrics), Not(HasSubstr("braid_job_rows_total{")));
  const JobMetrics jobs(&metrics);
  EXPECT_THAT(
      Scrape(metrics),
      AllOf(HasSubstr("braid_job_rows_total{kind=\"train\"} 0\n"),
            HasSubstr("braid_job_steps_total 0\n"),
            HasSubstr("braid_job_failures_total{code=\"UNAUTHENTICATED\",kind=\"infer\"} 0\n"),
            HasSubstr("braid_job_preemptions_total{kind=\"infer\"} 0\n"),
            HasSubstr("braid_job_pauses_total{kind=\"infer\"} 0\n"),
            HasSubstr("braid_job_queue_duration_seconds_count{kind=\"infer\"} 0\n"),
            HasSubstr("braid_job_duration_seconds_count{kind=\"infer\",state=\"failed\"} 0\n")));
}

TEST(JobMetricsTest, CountsWorkAndEndsByKind) {
  Metrics metrics;
  JobMetrics jobs(&metrics);
  jobs.CountRows("train", 30);
  jobs.CountSteps(2);
  jobs.RecordQueued("train", absl::Seconds(90));
  jobs.RecordQueued("train", absl::Seconds(-5));  // The clock was set back.
  jobs.RecordEnd("infer", "failed", absl::Hours(3));
  jobs.CountFailure("infer", absl::StatusCode::kNotFound);
  jobs.CountPreemption("train");
  jobs.CountPause("train");
  constexpr char kQueued[] = "braid_job_queue_duration_seconds";
  constexpr char kEnded[] = "braid_job_duration_seconds_bucket{kind=\"infer\",state=\"failed\",le=";
  EXPECT_THAT(Scrape(metrics),
              AllOf(HasSubstr("braid_job_rows_total{kind=\"train\"} 30\n"),
                    HasSubstr("braid_job_rows_total{kind=\"infer\"} 0\n"),
                    HasSubstr("braid_job_steps_total 2\n"),
                    HasSubstr(absl::StrCat(kQueued, "_bucket{kind=\"train\",le=\"60\"} 1\n")),
                    HasSubstr(absl::StrCat(kQueued, "_bucket{kind=\"train\",le=\"120\"} 2\n")),
                    HasSubstr(absl::StrCat(kQueued, "_sum{kind=\"train\"} 90\n")),
                    HasSubstr(absl::StrCat(kEnded, "\"7200\"} 0\n")),
                    HasSubstr(absl::StrCat(kEnded, "\"18000\"} 1\n")),
                    HasSubstr("braid_job_failures_total{code=\"NOT_FOUND\",kind=\"infer\"} 1\n"),
                    HasSubstr("braid_job_preemptions_total{kind=\"train\"} 1\n"),
                    HasSubstr("braid_job_pauses_total{kind=\"train\"} 1\n")));
}

TEST(MetricsTest, ReturnsTheCountersOfModels) {
  Metrics metrics;
  ModelMetrics model(&metrics, "m");
  const ModelMetrics unused(&metrics, "unused");
  model.CountBatch(8);
  model.AddQueuedRows(5);
  metrics.CountRequest("ModelInfer", "m", "OK", absl::Microseconds(40));
  metrics.CountRequest("ModelInfer", "m", "INTERNAL", absl::Microseconds(40));
  metrics.CountRequest("ModelStreamInfer", "m", "OK", absl::Hours(1));
  metrics.CountRequest("ModelMetadata", "m", "OK", absl::Milliseconds(3));
  metrics.CountRequest("ModelInfer", "nosuch", "NOT_FOUND", absl::Milliseconds(3));

  const std::map<std::string, ModelCounters> models = metrics.Models();
  ASSERT_THAT(models, SizeIs(2));
  const ModelCounters& counters = models.at("m");
  EXPECT_EQ(counters.requests, 3);
  EXPECT_EQ(counters.failures, 1);
  EXPECT_EQ(counters.rows, 8);
  EXPECT_EQ(counters.queue_rows, 5);
  ASSERT_THAT(counters.durations, SizeIs(Metrics::DurationBounds().size() + 1));
  EXPECT_EQ(counters.durations.front(), 2);
  EXPECT_EQ(counters.durations.back(), 1);
  EXPECT_EQ(std::accumulate(counters.durations.begin(), counters.durations.end(), int64_t{0}), 3);
  EXPECT_EQ(models.at("unused").requests, 0);
}

TEST(MetricsTest, ReturnsTheLossesOfTrainers) {
  Metrics metrics;
  TrainerMetrics trainer(&metrics, "t");
  const TrainerMetrics without(&metrics, "new");
  trainer.RecordLoss(0.5, 10);
  trainer.RecordLoss(0.25, 10);
  EXPECT_THAT(metrics.Losses(), ElementsAre(::testing::Pair("t", 0.25)));
}

TEST(MetricsTest, CountsFromManyThreads) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 500; ++i) {
        const ModelMetrics comes_and_goes(&metrics, "m");
        metrics.CountRequest("Step", i % 2 == 0 ? "m" : "", "OK", absl::Milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::string text = Scrape(metrics);
  EXPECT_THAT(text,
              HasSubstr("braid_requests_total{code=\"OK\",method=\"Step\",model=\"\"} 1000\n"));
  EXPECT_THAT(text, Not(HasSubstr("model=\"m\"")));
}

}  // namespace
}  // namespace braid
