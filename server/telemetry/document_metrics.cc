// Prints docs/reference/metrics.md: every metric that a server may serve, as the tables that serve
// them describe it. scripts/generate.sh writes the file.
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
    "What `http://HOST:8002/metrics` (`--metrics_port`) serves, in Prometheus's text format. "
    "`scripts/generate.sh` writes this file from the tables in\n"
    "`server/telemetry/` that serve the metrics.\n"
    "\n"
    "A number that is not known is absent, never 0. The series of a model go when nothing of it is "
    "left: no version is served, no request is\n"
    "answered, no trainer has it; those of a trainer go with it. A histogram `NAME` is "
    "`NAME_bucket`, `NAME_sum` and `NAME_count`. The library\n"
    "that answers scrapes adds `exposer_*`, about itself.\n";

// What a GPU's metrics need said of them all.
constexpr char kGpuNote[] =
    "Where there is an NVIDIA driver: read from NVML at each scrape, of each GPU of the machine. "
    "`gpu` and `uuid` are those of\n"
    "dcgm-exporter and of `braid_device_info`. A sensor that a GPU does not have is absent, and "
    "one "
    "that fails is absent and counted.\n"
    "\n";

const std::vector<std::pair<MetricGroup, const char*>>& Groups() {
  static const auto* const kGroups = new std::vector<std::pair<MetricGroup, const char*>>{
      {MetricGroup::kRequests, "Requests"}, {MetricGroup::kInference, "Inference"},
      {MetricGroup::kDevices, "Devices"},   {MetricGroup::kTraining, "Training"},
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

// By the convention of names, the last word but _total.
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
