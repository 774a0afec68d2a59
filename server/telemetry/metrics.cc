#include "server/telemetry/metrics.h"

#include "absl/synchronization/mutex.h"
#include "server/telemetry/metric_table.h"

namespace braid {

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

const std::shared_ptr<prometheus::Registry>& Metrics::registry() const {
  return table_->table.registry;
}

const std::vector<MetricDescription>& Metrics::descriptions() const {
  return table_->table.descriptions;
}

}  // namespace braid
