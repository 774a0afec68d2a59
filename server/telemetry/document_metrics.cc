// Prints docs/reference/metrics.md: all metrics of the server, from the tables that define them.
// scripts/generate.sh writes the file.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/telemetry/description.h"
#include "server/telemetry/gpu/gpu_families.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/process_metrics.h"
#include "server/telemetry/state_metrics.h"

namespace braid {
namespace {

constexpr char kIntroduction[] =
    "# Metrics\n"
    "\n"
    "Look up a metric of `http://HOST:8002/metrics` (`--metrics_port`), which serves Prometheus's "
    "text format. `scripts/generate.sh` writes\n"
    "this page from the tables in `server/telemetry/`.\n"
    "\n"
    "- A metric whose value is unknown is absent, never 0.\n"
    "- The series of a model exist while a version is served, a request is in flight or a trainer "
    "uses it. Those of a trainer exist as long\n"
    "  as the trainer, and those with a `job_id` while the job runs.\n"
    "- A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`.\n";

constexpr char kGpuNote[] =
    "Present on machines with an NVIDIA driver, for every GPU of the machine, read from NVML at "
    "each scrape. The labels `gpu` and `uuid`\n"
    "match those of dcgm-exporter and of `braid_device_info`. Metrics of a sensor that a GPU lacks "
    "are absent. If a sensor fails, its metrics\n"
    "are absent and `braid_gpu_sensor_errors_total` counts the failure.\n"
    "\n";

const std::vector<std::pair<MetricGroup, const char*>>& Groups() {
  static const auto* const kGroups = new std::vector<std::pair<MetricGroup, const char*>>{
      {MetricGroup::kRequests, "Requests"}, {MetricGroup::kInference, "Inference"},
      {MetricGroup::kDevices, "Devices"},   {MetricGroup::kTraining, "Training"},
      {MetricGroup::kJobs, "Jobs"},         {MetricGroup::kData, "Data"},
      {MetricGroup::kProcess, "Process"},   {MetricGroup::kGpu, "GPUs"},
  };
  return *kGroups;
}

std::vector<MetricDescription> All() {
  std::vector<MetricDescription> all = Metrics().descriptions();
  for (const auto* table :
       {&StateMetrics::Descriptions(), &ProcessMetrics::Descriptions(), &GpuDescriptions()}) {
    all.insert(all.end(), table->begin(), table->end());
  }
  return all;
}

const char* TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "";
  }
}

// Returns the unit from the name: the last word before "_total".
std::string UnitOf(absl::string_view name) {
  absl::ConsumeSuffix(&name, "_total");
  for (const char* unit :
       {"seconds", "bytes", "rows", "ratio", "watts", "joules", "celsius", "hertz"}) {
    if (absl::EndsWith(name, absl::StrCat("_", unit))) {
      return unit;
    }
  }
  return "";
}

std::string Row(const MetricDescription& metric) {
  const std::string labels =
      metric.labels.empty() ? "" : absl::StrCat("`", absl::StrJoin(metric.labels, "`, `"), "`");
  return absl::StrCat("| `", metric.name, "` | ", TypeName(metric.type), " | ", UnitOf(metric.name),
                      " | ", labels, " | ", metric.help, " |\n");
}

std::string Document() {
  const std::vector<MetricDescription> all = All();
  std::string text = kIntroduction;
  for (const auto& [group, title] : Groups()) {
    absl::StrAppend(&text, "\n## ", title, "\n\n", group == MetricGroup::kGpu ? kGpuNote : "",
                    "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for (const MetricDescription& metric : all) {
      absl::StrAppend(&text, metric.group == group ? Row(metric) : "");
    }
  }
  return text;
}

}  // namespace
}  // namespace braid

int main() {
  const std::string text = braid::Document();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
