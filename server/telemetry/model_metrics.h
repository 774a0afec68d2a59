// Metrics of a model.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "server/telemetry/metrics.h"

namespace braid {

struct MetricTable;

// Each user of a model owns one: the queues of its versions, its jobs and its trainers. They share
// the series, which exist as long as one of them. Thread-safe.
class ModelMetrics {
 public:
  // `metrics` outlives it.
  ModelMetrics(Metrics* metrics, absl::string_view model);
  ~ModelMetrics();
  ModelMetrics(const ModelMetrics&) = delete;
  ModelMetrics& operator=(const ModelMetrics&) = delete;

  // Counts a batch of `rows` rows.
  void CountBatch(int64_t rows);
  // Counts a batch of `rows` rows of a job.
  void CountJobBatch(int64_t rows);
  // Adds `delta` to the number of rows in the queue.
  void AddQueuedRows(int64_t delta);
  // Records the time until a worker took the first rows of a request.
  void RecordQueued(absl::Duration queued);
  // Counts `rows` decoded rows of a request. `busy`: time of the threads that decoded them.
  void CountDecoded(int64_t rows, absl::Duration busy);
  // Counts a request with a row that could not be decoded.
  void CountDecodeFailure();
  // Adds `delta` to the number of published versions that are not durable yet.
  void AddPendingVersions(int64_t delta);
  // Counts a published version with the outcome "durable", "superseded" or "failed", which it had
  // `duration` after it was served.
  void CountVersion(absl::string_view outcome, absl::Duration duration);

 private:
  // Keeps the series of a model.
  class Hold {
   public:
    Hold(MetricTable* table, absl::string_view model);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    MetricTable* const table_;
    const std::string model_;
  };

  MetricTable& table_;
  const std::string model_;
  const Hold hold_;
  prometheus::Gauge& queue_rows_;
  prometheus::Histogram& queue_duration_;
  prometheus::Histogram& batch_size_;
  prometheus::Counter& samples_;
  prometheus::Counter& job_samples_;
  prometheus::Counter& decoded_rows_;
  prometheus::Counter& decode_failures_;
  prometheus::Counter& decode_busy_;
};

}  // namespace braid
