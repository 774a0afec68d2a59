#include "server/status_reader.h"

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_state.h"
#include "server/jobs/store/job_store.h"

namespace braid {
namespace {

std::vector<DeviceReport> ReadDevices(const std::vector<DeviceState>& states,
                                      const std::vector<DeviceSlotView>& slots,
                                      const StatusReader::Sources& sources) {
  std::vector<DeviceReport> devices;
  for (size_t d = 0; d < states.size(); ++d) {
    const DeviceState& state = states[d];
    DeviceReport& device = devices.emplace_back(DeviceReport{
        state.name, state.kind, slots[d].hardware, state.healthy, slots[d].busy, slots[d].samples});
    const std::optional<GpuMemoryUse> gpu =
        state.uuid.empty() ? std::nullopt : sources.read_memory(state.uuid);
    if (gpu) {
      device.memory = gpu->used;
      device.memory_total = gpu->total;
      continue;
    }
    for (const OwnedMemory& memory : state.memory) {
      device.memory += memory.owner == "models" || memory.owner == "trainers" ? memory.bytes : 0;
    }
  }
  return devices;
}

// `served` is sorted by model and version.
std::vector<ModelReport> ReadModels(const std::vector<ServedVersionState>& served,
                                    const Metrics& metrics) {
  std::map<std::string, ModelCounters> counters = metrics.Models();
  std::vector<ModelReport> models;
  for (const ServedVersionState& version : served) {
    if (models.empty() || models.back().name != version.model) {
      models.push_back({version.model, {}, std::move(counters[version.model])});
    }
    models.back().versions.push_back(version.version);
  }
  return models;
}

std::vector<TrainerReport> ReadTrainers(const std::vector<TrainerState>& states,
                                        const std::map<std::string, double>& losses) {
  std::vector<TrainerReport> trainers;
  for (const TrainerState& state : states) {
    if (state.on_disk) {
      continue;  // There may be thousands of them.
    }
    TrainerReport& trainer =
        trainers.emplace_back(TrainerReport{state.name, state.model, state.failed, state.step,
                                            std::nullopt, state.lr, 0, state.devices});
    if (const auto loss = losses.find(state.name); loss != losses.end()) {
      trainer.loss = loss->second;
    }
    for (const DeviceMemory& memory : state.memory) {
      trainer.memory += memory.current;
    }
  }
  return trainers;
}

JobReport ReadJob(const JobRecord& job) {
  const JobProgress& progress = job.progress;
  return {job.id,
          job.kind == JobKind::kTrain ? "train" : "infer",
          job.model,
          std::string(JobStateName(job.state)),
          progress.rows,
          progress.total_rows,
          progress.step,
          progress.loss,
          progress.rows_per_second};
}

absl::StatusOr<JobsReport> ReadJobs(const Jobs& jobs) {
  BRAID_RETURN_IF_ERROR(jobs.error());
  const std::vector<JobState> active = {JobState::kRunning, JobState::kQueued, JobState::kPaused};
  JobFilter ended;
  ended.states = {JobState::kSucceeded, JobState::kFailed, JobState::kCancelled};
  const JobStore& store = jobs.store();
  BRAID_ASSIGN_OR_RETURN(const std::vector<JobCount> counts, store.Count());
  std::vector<JobRecord> records;
  for (const JobState state : active) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<JobRecord> found,
                           store.InState(state, StatusReader::kMaxJobsInState));
    records.insert(records.end(), found.begin(), found.end());
  }
  BRAID_ASSIGN_OR_RETURN(const JobPage newest,
                         store.ListNewest(ended, StatusReader::kMaxEndedJobs));
  records.insert(records.end(), newest.jobs.begin(), newest.jobs.end());
  jobs.scheduler().AddProgress(&records);

  JobsReport report;
  for (const JobRecord& record : records) {
    report.jobs.push_back(ReadJob(record));
  }
  for (const std::vector<JobState>& states : {active, ended.states}) {
    for (const JobState state : states) {
      int64_t in_state = 0;
      for (const JobCount& count : counts) {
        in_state += count.state == state ? count.jobs : 0;
      }
      if (in_state > 0) {
        report.counts.emplace_back(JobStateName(state), in_state);
      }
    }
  }
  return report;
}

}  // namespace

StatusReader::StatusReader(Sources sources) : sources_(std::move(sources)) {}

StatusReport StatusReader::Read() const {
  const ServerState state = sources_.state.Read();
  return {state.version,
          sources_.health->readiness(),
          absl::Now() - sources_.start,
          state.requests,
          ReadDevices(state.devices, sources_.pool->View(), sources_),
          ReadModels(state.served, *sources_.metrics),
          ReadTrainers(sources_.trainers->States(), sources_.metrics->Losses()),
          ReadJobs(*sources_.jobs)};
}

}  // namespace braid
