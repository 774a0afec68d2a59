// Descriptions of metrics, used to serve them and to generate docs/reference/metrics.md.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

namespace braid {

enum class MetricGroup { kRequests, kInference, kDevices, kTraining, kJobs, kData, kProcess, kGpu };

struct MetricDescription {
  MetricGroup group = MetricGroup::kRequests;
  std::string name;
  prometheus::MetricType type = prometheus::MetricType::Untyped;
  // Label names, in the order of the label values.
  std::vector<std::string> labels;
  std::string help;
};

// Returns a family without series, for metrics that are read at each scrape.
prometheus::MetricFamily EmptyFamily(const MetricDescription& description);

// Adds a series to `family`, which belongs to `description`. `labels` are the label values.
void AddSeries(const MetricDescription& description, const std::vector<std::string>& labels,
               double value, prometheus::MetricFamily* family);

}  // namespace braid
