// Prometheus metrics of the server, which metric_table.h defines and docs/reference/metrics.md
// lists. Models, trainers, workers and jobs update theirs through ModelMetrics, TrainerMetrics,
// DeviceMetrics and JobMetrics.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
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

// Inference requests of a model since it has metrics. Each request of a stream counts.
struct ModelCounters {
  int64_t requests = 0;  // completed, failed ones too
  int64_t failures = 0;
  int64_t rows = 0;        // inferred for requests
  int64_t queue_rows = 0;  // that wait now
  // Completed requests by duration: one count per bound of DurationBounds(), of the requests up to
  // it and above the bound before, and a last one of longer requests. Empty: no requests.
  std::vector<int64_t> durations = {};
};

// Owned by the server. Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Counts a completed RPC. `method` has no package ("ModelInfer"), `code` is a name ("NOT_FOUND").
  // `model` is the client's text. It becomes a label only if a ModelMetrics with this name exists,
  // so that clients cannot create series.
  void CountRequest(absl::string_view method, absl::string_view model, absl::string_view code,
                    absl::Duration duration);
  // Counts a denied call. `reason` is "no_credentials", "bad_credentials" or "role".
  void CountDenied(absl::string_view reason);
  // Counts an upload of a dataset. `result` is "stored", "replaced", "unchanged" or "failed".
  void CountDatasetUpload(absl::string_view result);

  // Returns the counters of all models that have metrics, by name.
  std::map<std::string, ModelCounters> Models() const;
  // Returns the upper bounds for ModelCounters::durations in seconds, ascending.
  static std::vector<double> DurationBounds();
  // Returns the latest loss of each trainer that has one, by name.
  std::map<std::string, double> Losses() const;

  // Returns the registry for scrapes.
  const std::shared_ptr<prometheus::Registry>& registry() const;
  // Returns the descriptions of all metrics in the registry.
  const std::vector<MetricDescription>& descriptions() const;

 private:
  friend class DeviceMetrics;
  friend class JobMetrics;
  friend class ModelMetrics;
  friend class TrainerMetrics;

  const std::unique_ptr<MetricTable> table_;
};

}  // namespace braid
