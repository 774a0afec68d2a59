// What Linux says of the server's process, under the names that all Prometheus clients use.
#pragma once

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/telemetry/description.h"

namespace braid {

// Thread-safe. What cannot be read is absent.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  // `proc`: where the kernel's files are.
  explicit ProcessMetrics(std::string proc = "/proc") : proc_(std::move(proc)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

  // All that may be collected.
  static const std::vector<MetricDescription>& Descriptions();

 private:
  const std::string proc_;
};

}  // namespace braid
