#include "server/telemetry/model_metrics.h"

#include "absl/synchronization/mutex.h"
#include "server/telemetry/metric_table.h"

namespace braid {

ModelMetrics::Hold::Hold(MetricTable* table, absl::string_view model)
    : table_(table), model_(model) {
  const absl::MutexLock lock(&table_->mu);
  ++table_->models[model_];
}

ModelMetrics::Hold::~Hold() {
  const absl::MutexLock lock(&table_->mu);
  const auto found = table_->models.find(model_);
  if (--found->second > 0) {
    return;
  }
  table_->models.erase(found);
  const auto drop = [this](auto&... families) { (families.Drop("model", model_), ...); };
  drop(table_->requests, table_->request_duration, table_->queue_rows, table_->queue_duration,
       table_->batch_size, table_->samples, table_->job_samples, table_->decoded_rows,
       table_->decode_failures, table_->decode_busy, table_->pending_versions,
       table_->version_writes, table_->version_write_duration);
}

ModelMetrics::ModelMetrics(Metrics* metrics, absl::string_view model)
    : table_(*metrics->table_),
      model_(model),
      hold_(metrics->table_.get(), model),
      queue_rows_(metrics->table_->queue_rows.At({model})),
      queue_duration_(metrics->table_->queue_duration.At({model})),
      batch_size_(metrics->table_->batch_size.At({model})),
      samples_(metrics->table_->samples.At({model})),
      job_samples_(metrics->table_->job_samples.At({model})),
      decoded_rows_(metrics->table_->decoded_rows.At({model})),
      decode_failures_(metrics->table_->decode_failures.At({model})),
      decode_busy_(metrics->table_->decode_busy.At({model})) {
  // Start at 0, so that increase() sees the first one.
  for (const char* outcome : {"durable", "superseded", "failed"}) {
    table_.version_writes.At({model_, outcome});
  }
}

ModelMetrics::~ModelMetrics() = default;

void ModelMetrics::CountBatch(int64_t rows) {
  batch_size_.Observe(static_cast<double>(rows));
  samples_.Increment(static_cast<double>(rows));
}

void ModelMetrics::CountJobBatch(int64_t rows) {
  job_samples_.Increment(static_cast<double>(rows));
}

void ModelMetrics::AddQueuedRows(int64_t delta) {
  queue_rows_.Increment(static_cast<double>(delta));
}

void ModelMetrics::RecordQueued(absl::Duration queued) {
  queue_duration_.Observe(absl::ToDoubleSeconds(queued));
}

void ModelMetrics::CountDecoded(int64_t rows, absl::Duration busy) {
  decoded_rows_.Increment(static_cast<double>(rows));
  decode_busy_.Increment(absl::ToDoubleSeconds(busy));
}

void ModelMetrics::CountDecodeFailure() { decode_failures_.Increment(); }

void ModelMetrics::AddPendingVersions(int64_t delta) {
  table_.pending_versions.At({model_}).Increment(static_cast<double>(delta));
}

void ModelMetrics::CountVersion(absl::string_view outcome, absl::Duration duration) {
  table_.version_writes.At({model_, outcome}).Increment();
  if (outcome == "durable") {
    table_.version_write_duration.At({model_}).Observe(absl::ToDoubleSeconds(duration));
  }
}

}  // namespace braid
