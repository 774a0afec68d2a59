#include "server/telemetry/state_metrics.h"

#include <cstddef>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

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
  kJobStarted,
  kJobLastProgress,
  kJobProgress,
  kJobDoneRows,
  kJobPlannedRows,
  kJobSkippedRows,
  kJobDoneSteps,
  kJobPlannedSteps,
  kJobRowRate,
  kJobStepRate,
  kJobWait,
  kJobLoss,
  kDatasetBytes,
  kDatasetQuota,
  kBuildInfo,
};

using AddValue =
    absl::FunctionRef<void(Row row, const std::vector<std::string>& labels, double value)>;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

void AddRunningJob(const RunningJobState& job, AddValue add) {
  const std::vector<std::string> labels = {job.id, job.kind, job.model};
  const auto rows = static_cast<double>(job.rows);
  const auto total_rows = static_cast<double>(job.total_rows);
  add(kJobStarted, labels, UnixSeconds(job.started));
  add(kJobLastProgress, labels, UnixSeconds(job.last_progress));
  add(kJobDoneRows, labels, rows);
  add(kJobSkippedRows, labels, static_cast<double>(job.skipped_rows));
  add(kJobRowRate, labels, job.rows_per_second);
  add(kJobWait, labels, job.wait_seconds);
  if (job.total_rows > 0) {
    add(kJobPlannedRows, labels, total_rows);
    add(kJobProgress, labels, rows / total_rows);
  }
  if (job.total_steps > 0) {
    add(kJobDoneSteps, labels, static_cast<double>(job.steps));
    add(kJobPlannedSteps, labels, static_cast<double>(job.total_steps));
    add(kJobStepRate, labels, job.steps_per_second);
  }
  if (job.loss.has_value()) {
    add(kJobLoss, labels, *job.loss);
  }
}

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
       "Trainers by state: running, on_disk or failed (an update was interrupted)."},
      {MetricGroup::kJobs,
       "braid_jobs",
       MetricType::Gauge,
       {"kind", "state"},
       "Jobs by kind (train, infer) and state: queued, running, paused, succeeded, failed or "
       "cancelled. Ended ones until their records are removed (--job_retention_days)."},
      {MetricGroup::kJobs,
       "braid_job_started_timestamp_seconds",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Unix time of the first start of a running job."},
      {MetricGroup::kJobs,
       "braid_job_last_progress_timestamp_seconds",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Unix time when a running job last made progress: a row, a step, a batch of an evaluation, "
       "or a part of its data that was copied or packed. At first, the time of its last start."},
      {MetricGroup::kJobs,
       "braid_job_progress_ratio",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Share of a running job's rows that are done, from 0 to 1. Absent until it has opened its "
       "data, like the other totals."},
      {MetricGroup::kJobs,
       "braid_job_done_rows",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Rows that a running job has done, in training over all epochs."},
      {MetricGroup::kJobs,
       "braid_job_planned_rows",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "All rows of a running job, in training over all epochs."},
      {MetricGroup::kJobs,
       "braid_job_skipped_rows",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Rows that a running job left out because they are unreadable."},
      {MetricGroup::kJobs,
       "braid_job_done_steps",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Steps that a running training job has done."},
      {MetricGroup::kJobs,
       "braid_job_planned_steps",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "All steps of a running training job. It may stop early."},
      {MetricGroup::kJobs,
       "braid_job_rows_per_second",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Rows per second of a running job, over the last seconds."},
      {MetricGroup::kJobs,
       "braid_job_steps_per_second",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Steps per second of a running training job, over the last seconds."},
      {MetricGroup::kJobs,
       "braid_job_data_wait_seconds_total",
       MetricType::Counter,
       {"job_id", "kind", "model"},
       "Time that a running job's devices waited for data, since it last started."},
      {MetricGroup::kJobs,
       "braid_job_loss",
       MetricType::Gauge,
       {"job_id", "kind", "model"},
       "Loss of the last step of a running training job."},
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
  add(kTrainers, {"on_disk"}, static_cast<double>(state.trainers_on_disk));
  for (const JobsInState& jobs : state.jobs) {
    add(kJobs, {jobs.kind, jobs.state}, static_cast<double>(jobs.jobs));
  }
  for (const RunningJobState& job : state.running_jobs) {
    AddRunningJob(job, add);
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
