// What the server counts, by Prometheus's names: docs/reference/metrics.md lists it, metric_table.h
// says it.
//
// This counts what belongs to nobody in particular. Who serves a model, is a trainer, or a device's
// worker, counts through a ModelMetrics, TrainerMetrics or DeviceMetrics of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/telemetry/phase.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace braid {

struct MetricDescription;
struct MetricTable;

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // An RPC came to its end: `method` without the package ("ModelInfer"), `code` "OK",
  // "NOT_FOUND"…; `model` as the client wrote it: it is a label only while there is a ModelMetrics
  // of that name, so that hostile names make no series.
  void CountRequest(absl::string_view method, absl::string_view model, absl::string_view code,
                    absl::Duration duration);
  // A call was refused for "no_credentials", "bad_credentials" or its "role".
  void CountDenied(absl::string_view reason);

  // What a scrape reads.
  const std::shared_ptr<prometheus::Registry>& registry() const;
  // All that may be in it.
  const std::vector<MetricDescription>& descriptions() const;

 private:
  friend class DeviceMetrics;
  friend class ModelMetrics;
  friend class TrainerMetrics;

  const std::unique_ptr<MetricTable> table_;
};

}  // namespace braid
