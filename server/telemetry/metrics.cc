#include "server/telemetry/metrics.h"

#include <cstddef>

#include "absl/synchronization/mutex.h"
#include "prometheus/client_metric.h"
#include "server/telemetry/metric_table.h"

namespace braid {
namespace {

// Returns the value of a label that the series has.
std::string Label(const prometheus::ClientMetric& series, absl::string_view name) {
  for (const prometheus::ClientMetric::Label& label : series.label) {
    if (label.name == name) {
      return label.value;
    }
  }
  return "";
}

// Calls visit(model, series) for the series of models. Of a metric of requests, only for those of
// inference.
template <typename T, typename Visit>
void ForEachModel(const Series<T>& metric, Visit visit) {
  for (const prometheus::MetricFamily& family : metric.Collect()) {
    for (const prometheus::ClientMetric& series : family.metric) {
      const std::string model = Label(series, "model");
      const std::string method = Label(series, "method");
      if (!model.empty() &&
          (method.empty() || method == "ModelInfer" || method == "ModelStreamInfer")) {
        visit(model, series);
      }
    }
  }
}

// Adds the counts of a histogram's buckets, which count those before too.
void AddBuckets(const prometheus::ClientMetric::Histogram& histogram,
                std::vector<int64_t>* counts) {
  counts->resize(histogram.bucket.size());
  uint64_t before = 0;
  for (size_t b = 0; b < histogram.bucket.size(); ++b) {
    (*counts)[b] += static_cast<int64_t>(histogram.bucket[b].cumulative_count - before);
    before = histogram.bucket[b].cumulative_count;
  }
}

}  // namespace

Metrics::Metrics() : table_(std::make_unique<MetricTable>()) {
  // Start at 0, so that rate() sees the first increment.
  for (const char* reason : {"no_credentials", "bad_credentials", "role"}) {
    table_->denied.At({reason});
  }
  for (const char* result : {"stored", "replaced", "unchanged", "failed"}) {
    table_->dataset_uploads.At({result});
  }
}

Metrics::~Metrics() = default;

void Metrics::CountRequest(absl::string_view method, absl::string_view model,
                           absl::string_view code, absl::Duration duration) {
  MetricTable& table = *table_;
  // Keeps a ModelMetrics that is destroyed at the same time from removing the series.
  const absl::MutexLock lock(&table.mu);
  const absl::string_view label = table.models.contains(model) ? model : "";
  table.requests.At({method, label, code}).Increment();
  table.request_duration.At({method, label}).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountDenied(absl::string_view reason) { table_->denied.At({reason}).Increment(); }

void Metrics::CountDatasetUpload(absl::string_view result) {
  table_->dataset_uploads.At({result}).Increment();
}

std::map<std::string, ModelCounters> Metrics::Models() const {
  using prometheus::ClientMetric;
  std::map<std::string, ModelCounters> models;
  ForEachModel(table_->requests, [&](const std::string& model, const ClientMetric& series) {
    const auto requests = static_cast<int64_t>(series.counter.value);
    models[model].requests += requests;
    models[model].failures += Label(series, "code") == "OK" ? 0 : requests;
  });
  ForEachModel(table_->request_duration, [&](const std::string& model, const ClientMetric& series) {
    AddBuckets(series.histogram, &models[model].durations);
  });
  ForEachModel(table_->samples, [&](const std::string& model, const ClientMetric& series) {
    models[model].rows = static_cast<int64_t>(series.counter.value);
  });
  ForEachModel(table_->queue_rows, [&](const std::string& model, const ClientMetric& series) {
    models[model].queue_rows = static_cast<int64_t>(series.gauge.value);
  });
  return models;
}

std::vector<double> Metrics::DurationBounds() { return MetricTable::Latencies(); }

std::map<std::string, double> Metrics::Losses() const {
  std::map<std::string, double> losses;
  for (const prometheus::MetricFamily& family : table_->loss.Collect()) {
    for (const prometheus::ClientMetric& series : family.metric) {
      losses[Label(series, "trainer")] = series.gauge.value;
    }
  }
  return losses;
}

const std::shared_ptr<prometheus::Registry>& Metrics::registry() const {
  return table_->table.registry;
}

const std::vector<MetricDescription>& Metrics::descriptions() const {
  return table_->table.descriptions;
}

}  // namespace braid
