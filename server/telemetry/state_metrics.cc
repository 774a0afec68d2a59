#include "server/telemetry/state_metrics.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

// In the order of the table.
enum Row : size_t {
  kRequests,
  kRequestBytes,
  kModelReady,
  kDeviceInfo,
  kDeviceHealthy,
  kDeviceMemory,
  kTrainers,
  kJobs,
  kJobProgress,
  kJobRows,
  kJobWait,
  kDatasetBytes,
  kDatasetQuota,
  kJobSkipped,
  kBuildInfo,
};

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a table
const std::vector<MetricDescription>& StateMetrics::Descriptions() {
  static const auto* const kTable = new std::vector<MetricDescription>{
      {MetricGroup::kRequests,
       "braid_requests_in_flight",
       MetricType::Gauge,
       {},
       "Requests that are admitted and not answered yet. Limit: --max_requests."},
      {MetricGroup::kRequests,
       "braid_request_bytes_in_flight",
       MetricType::Gauge,
       {},
       "Bytes of the requests in flight. Limit: --max_request_bytes, or one larger request."},
      {MetricGroup::kInference,
       "braid_model_ready",
       MetricType::Gauge,
       {"model", "version"},
       "1 for each served version."},
      {MetricGroup::kDevices,
       "braid_device_info",
       MetricType::Gauge,
       {"device", "kind", "gpu", "uuid"},
       "1 for each device slot. kind is cpu or cuda; gpu and uuid are the labels of the braid_gpu_ "
       "metrics, empty for a CPU slot."},
      {MetricGroup::kDevices,
       "braid_device_healthy",
       MetricType::Gauge,
       {"device"},
       "1, or 0 once the device is lost."},
      {MetricGroup::kDevices,
       "braid_device_memory_bytes",
       MetricType::Gauge,
       {"device", "owner"},
       "Memory by owner: models (parameters and buffers of served models) and trainers (state "
       "between operations). The first slot of a GPU also has allocator (all of LibTorch's "
       "tensors) "
       "and cache (free memory that LibTorch's allocator keeps)."},
      {MetricGroup::kTraining,
       "braid_trainers",
       MetricType::Gauge,
       {"state"},
       "Trainers by state: running or failed (an update was interrupted)."},
      {MetricGroup::kJobs,
       "braid_jobs",
       MetricType::Gauge,
       {"kind", "state"},
       "Jobs by kind (train, infer) and state. Ended ones until their records are removed "
       "(--job_retention_days)."},
      {MetricGroup::kJobs,
       "braid_job_progress_ratio",
       MetricType::Gauge,
       {"job", "kind", "model"},
       "Share of a running job's rows that are done, from 0 to 1."},
      {MetricGroup::kJobs,
       "braid_job_rows_per_second",
       MetricType::Gauge,
       {"job", "kind", "model"},
       "Rows per second of a running job, over the last seconds."},
      {MetricGroup::kJobs,
       "braid_job_data_wait_seconds",
       MetricType::Gauge,
       {"job", "kind", "model"},
       "Time that a running job's devices waited for data, since it last started."},
      {MetricGroup::kData,
       "braid_dataset_bytes",
       MetricType::Gauge,
       {},
       "Bytes of the datasets below --dataset_root, and of unfinished uploads."},
      {MetricGroup::kData,
       "braid_dataset_quota_bytes",
       MetricType::Gauge,
       {},
       "--dataset_quota, the limit of braid_dataset_bytes. Absent without a limit."},
      {MetricGroup::kJobs,
       "braid_job_skipped_rows",
       MetricType::Gauge,
       {"job", "kind", "model"},
       "Rows that a running job left out because they are unreadable."},
      {MetricGroup::kProcess,
       "braid_build_info",
       MetricType::Gauge,
       {"version"},
       "1; the label is the server's version."},
  };
  return *kTable;
}

std::vector<MetricFamily> StateMetrics::Collect() const {
  const ServerState state = read_();
  const std::vector<MetricDescription>& table = Descriptions();
  std::vector<MetricFamily> families;
  for (const MetricDescription& description : table) {
    families.push_back(EmptyFamily(description));
  }
  const auto add = [&](Row row, const std::vector<std::string>& labels, double value) {
    AddSeries(table[row], labels, value, &families[row]);
  };
  add(kRequests, {}, static_cast<double>(state.requests));
  add(kRequestBytes, {}, static_cast<double>(state.request_bytes));
  for (const ServedVersionState& served : state.served) {
    add(kModelReady, {served.model, absl::StrCat(served.version)}, 1);
  }
  for (const DeviceState& device : state.devices) {
    add(kDeviceInfo, {device.name, device.kind, device.gpu, device.uuid}, 1);
    add(kDeviceHealthy, {device.name}, device.healthy ? 1 : 0);
    for (const OwnedMemory& memory : device.memory) {
      add(kDeviceMemory, {device.name, memory.owner}, static_cast<double>(memory.bytes));
    }
  }
  add(kTrainers, {"running"}, static_cast<double>(state.running_trainers));
  add(kTrainers, {"failed"}, static_cast<double>(state.failed_trainers));
  for (const JobsInState& jobs : state.jobs) {
    add(kJobs, {jobs.kind, jobs.state}, static_cast<double>(jobs.jobs));
  }
  for (const RunningJobState& job : state.running_jobs) {
    const std::vector<std::string> labels = {job.job, job.kind, job.model};
    add(kJobProgress, labels, job.progress);
    add(kJobRows, labels, job.rows_per_second);
    add(kJobWait, labels, job.wait_seconds);
    add(kJobSkipped, labels, static_cast<double>(job.skipped_rows));
  }
  if (state.dataset_bytes) {
    add(kDatasetBytes, {}, static_cast<double>(*state.dataset_bytes));
  }
  if (state.dataset_quota) {
    add(kDatasetQuota, {}, static_cast<double>(*state.dataset_quota));
  }
  add(kBuildInfo, {state.version}, 1);
  std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
  return families;
}

}  // namespace braid
