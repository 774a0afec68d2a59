// What is counted of a model.
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

// Thread-safe. Everybody who has to do with a model has one: its versions' queues, its trainers.
// They share the series, which go with the last of them.
class ModelMetrics {
 public:
  // `metrics` outlives it.
  ModelMetrics(Metrics* metrics, absl::string_view model);
  ~ModelMetrics();
  ModelMetrics(const ModelMetrics&) = delete;
  ModelMetrics& operator=(const ModelMetrics&) = delete;

  // `rows` rows went through a forward pass as one batch.
  void CountBatch(int64_t rows);
  // Rows that wait in the queue changed by `delta`.
  void AddQueuedRows(int64_t delta);
  // A request waited for `queued` until a worker took the first of its rows.
  void RecordQueued(absl::Duration queued);

 private:
  // Held: the series cannot go.
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

  const Hold hold_;
  prometheus::Gauge& queue_rows_;
  prometheus::Histogram& queue_duration_;
  prometheus::Histogram& batch_size_;
  prometheus::Counter& samples_;
};

}  // namespace braid
