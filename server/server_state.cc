#include "server/server_state.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "server/base/version.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_state.h"
#include "server/jobs/running_job.h"
#include "server/jobs/store/job_store.h"

namespace braid {
namespace {

using BytesByDevice = std::map<std::string, int64_t>;

BytesByDevice Sum(const std::vector<ServedVersion>& served) {
  BytesByDevice bytes;
  for (const ServedVersion& version : served) {
    for (const auto& [device, taken] : version.memory) {
      bytes[device] += taken;
    }
  }
  return bytes;
}

BytesByDevice Sum(const std::vector<TrainerState>& trainers) {
  BytesByDevice bytes;
  for (const TrainerState& trainer : trainers) {
    for (const DeviceMemory& memory : trainer.memory) {
      bytes[memory.device] += memory.current;
    }
  }
  return bytes;
}

RunningJobState StateOf(const RunningJob& running) {
  const JobRecord& record = running.record();
  const JobProgress progress = running.progress();
  RunningJobState state;
  state.id = record.id;
  state.kind = std::string(JobKindName(record.kind));
  state.model = record.model;
  state.started = record.started;
  state.last_progress = running.last_progress();
  state.rows = progress.rows;
  state.total_rows = progress.total_rows;
  state.steps = progress.step;
  state.total_steps = progress.total_steps;
  state.rows_per_second = progress.rows_per_second;
  state.steps_per_second = progress.steps_per_second;
  state.wait_seconds = progress.wait_seconds;
  state.skipped_rows = progress.skipped_rows;
  state.loss = progress.loss;
  return state;
}

void AddJobs(const Jobs& jobs, ServerState* state) {
  if (!jobs.started()) {
    return;
  }
  if (const absl::StatusOr<std::vector<JobCount>> counts = jobs.store().Count(); counts.ok()) {
    std::map<std::pair<JobKind, JobState>, int64_t> by_state;
    for (const JobCount& count : *counts) {
      by_state[{count.kind, count.state}] = count.jobs;
    }
    for (const JobKind kind : kJobKinds) {
      for (const JobState job_state : kJobStates) {
        state->jobs.push_back({std::string(JobKindName(kind)),
                               absl::AsciiStrToLower(JobStateName(job_state)),
                               by_state[{kind, job_state}]});
      }
    }
  }
  for (const std::shared_ptr<const RunningJob>& job : jobs.scheduler().Running()) {
    state->running_jobs.push_back(StateOf(*job));
  }
}

}  // namespace

ServerStateReader::ServerStateReader(const Admission* admission, const ServedModels* models,
                                     const TrainerRegistry* trainers, const Jobs* jobs,
                                     const DatasetSpace* datasets, const DevicePool* pool,
                                     const FindGpu& find_gpu)
    : admission_(admission),
      models_(models),
      trainers_(trainers),
      jobs_(jobs),
      datasets_(datasets) {
  std::set<int> gpus;
  for (const Worker* worker : pool->workers()) {
    const Device& device = worker->device();
    Slot slot{worker, {worker->name(), "cpu", "", ""}};
    if (device.torch_device().is_cuda()) {
      const GpuId id = device.gpu();
      const GpuLabels labels = find_gpu(id).value_or(GpuLabels{"", id.uuid});
      slot.fixed = {worker->name(), "cuda", labels.gpu, labels.uuid};
      slot.has_allocator = gpus.insert(device.torch_device().index()).second;
    }
    slots_.push_back(std::move(slot));
  }
}

ServerState ServerStateReader::Read() const {
  ServerState state;
  state.version = kVersion;
  state.requests = admission_->in_flight();
  state.request_bytes = static_cast<int64_t>(admission_->bytes_in_flight());
  const std::vector<ServedVersion> served = models_->Served();
  for (const ServedVersion& version : served) {
    state.served.push_back({version.model, version.version});
  }
  const std::vector<TrainerState> trainers = trainers_->States();
  for (const TrainerState& trainer : trainers) {
    ++(trainer.failed    ? state.failed_trainers
       : trainer.on_disk ? state.trainers_on_disk
                         : state.running_trainers);
  }
  AddJobs(*jobs_, &state);
  if (datasets_ != nullptr) {
    state.dataset_bytes = datasets_->used();
    if (datasets_->quota() > 0) {
      state.dataset_quota = datasets_->quota();
    }
  }
  BytesByDevice model_bytes = Sum(served);
  BytesByDevice trainer_bytes = Sum(trainers);
  for (const Slot& slot : slots_) {
    DeviceState& device = state.devices.emplace_back(slot.fixed);
    device.healthy = slot.worker->healthy();
    device.memory = {{"models", model_bytes[device.name]},
                     {"trainers", trainer_bytes[device.name]}};
    const auto allocator =
        slot.has_allocator ? slot.worker->device().allocator_memory() : std::nullopt;
    if (allocator) {
      device.memory.push_back({"allocator", allocator->allocated});
      device.memory.push_back({"cache", allocator->cached});
    }
  }
  return state;
}

}  // namespace braid
