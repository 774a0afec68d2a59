// What docs/reference/metrics.md says of a metric. The tables that describe metrics are what serves
// them.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace braid {

enum class MetricGroup { kRequests, kInference, kDevices, kTraining, kProcess, kGpu };

struct MetricDescription {
  MetricGroup group = MetricGroup::kRequests;
  std::string name;
  prometheus::MetricType type = prometheus::MetricType::Untyped;
  // Of every series, in the order in which their values are given.
  std::vector<std::string> labels;
  std::string help;
};

// A family without a series yet, for what is read when it is scraped.
prometheus::MetricFamily EmptyFamily(const MetricDescription& description);

// Adds the series with these values of the labels, in their order. `family` is of `description`.
void AddSeries(const MetricDescription& description, const std::vector<std::string>& labels,
               double value, prometheus::MetricFamily* family);

}  // namespace braid
