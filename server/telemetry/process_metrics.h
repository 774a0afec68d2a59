// Metrics of the server's process, under the standard names of Prometheus clients.
#pragma once

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/telemetry/description.h"

namespace braid {

// Reads Linux's proc file system. A metric that cannot be read is absent. Thread-safe.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  // `proc` is "/proc" except in tests.
  explicit ProcessMetrics(std::string proc = "/proc") : proc_(std::move(proc)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

  // Returns the descriptions of all metrics.
  static const std::vector<MetricDescription>& Descriptions();

 private:
  const std::string proc_;
};

}  // namespace braid
