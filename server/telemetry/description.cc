#include "server/telemetry/description.h"

#include <cstddef>
#include <utility>

#include "prometheus/client_metric.h"

namespace braid {

prometheus::MetricFamily EmptyFamily(const MetricDescription& description) {
  return {description.name, description.help, description.type, {}};
}

void AddSeries(const MetricDescription& description, const std::vector<std::string>& labels,
               double value, prometheus::MetricFamily* family) {
  prometheus::ClientMetric metric;
  for (size_t l = 0; l < description.labels.size(); ++l) {
    metric.label.push_back({description.labels[l], labels[l]});
  }
  const bool counter = description.type == prometheus::MetricType::Counter;
  (counter ? metric.counter.value : metric.gauge.value) = value;
  family->metric.push_back(std::move(metric));
}

}  // namespace braid
