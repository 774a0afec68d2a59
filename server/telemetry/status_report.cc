#include "server/telemetry/status_report.h"

#include <cstddef>
#include <utility>

#include "nlohmann/json.hpp"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json DeviceJson(const DeviceReport& device) {
  Json busy = Json::object();
  for (int p = 0; p < kPhases; ++p) {
    busy[std::string(PhaseName(static_cast<Phase>(p)))] =
        absl::ToDoubleSeconds(device.busy[static_cast<size_t>(p)]);
  }
  return {{"name", device.name},
          {"kind", device.kind},
          {"hardware", device.hardware},
          {"healthy", device.healthy},
          {"busy_seconds", std::move(busy)},
          {"rows", device.rows},
          {"memory_bytes", device.memory},
          {"memory_total_bytes", OrNull(device.memory_total)}};
}

Json ModelJson(const ModelReport& model, size_t buckets) {
  std::vector<int64_t> durations = model.counters.durations;
  durations.resize(buckets);
  return {{"name", model.name},
          {"versions", model.versions},
          {"requests", model.counters.requests},
          {"failures", model.counters.failures},
          {"rows", model.counters.rows},
          {"queue_rows", model.counters.queue_rows},
          {"durations", std::move(durations)}};
}

Json TrainerJson(const TrainerReport& trainer) {
  return {{"name", trainer.name},           {"model", trainer.model},
          {"failed", trainer.failed},       {"step", trainer.step},
          {"loss", OrNull(trainer.loss)},   {"lr", trainer.lr},
          {"memory_bytes", trainer.memory}, {"devices", trainer.devices}};
}

Json JobJson(const JobReport& job) {
  return {
      {"id", job.id},       {"kind", job.kind},         {"model", job.model},
      {"state", job.state}, {"rows", job.rows},         {"total_rows", job.total_rows},
      {"step", job.step},   {"loss", OrNull(job.loss)}, {"rows_per_second", job.rows_per_second}};
}

}  // namespace

std::string ToJson(const StatusReport& report) {
  const std::vector<double> bounds = Metrics::DurationBounds();
  Json json = {{"version", report.version},
               {"ready", report.readiness.ok()},
               {"reason", std::string(report.readiness.message())},
               {"uptime_seconds", absl::ToDoubleSeconds(report.uptime)},
               {"requests_in_flight", report.requests},
               {"devices", Json::array()},
               {"duration_bounds_seconds", bounds},
               {"models", Json::array()},
               {"trainers", Json::array()},
               {"jobs", nullptr},
               {"job_counts", nullptr},
               {"jobs_error", std::string(report.jobs.status().message())}};
  for (const DeviceReport& device : report.devices) {
    json["devices"].push_back(DeviceJson(device));
  }
  for (const ModelReport& model : report.models) {
    json["models"].push_back(ModelJson(model, bounds.size() + 1));
  }
  for (const TrainerReport& trainer : report.trainers) {
    json["trainers"].push_back(TrainerJson(trainer));
  }
  if (report.jobs.ok()) {
    json["jobs"] = Json::array();
    for (const JobReport& job : report.jobs->jobs) {
      json["jobs"].push_back(JobJson(job));
    }
    json["job_counts"] = Json::object();
    for (const auto& [state, jobs] : report.jobs->counts) {
      json["job_counts"][state] = jobs;
    }
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace braid
