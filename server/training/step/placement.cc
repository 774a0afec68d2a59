#include "server/training/step/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/training/step/autocast_type.h"
#include "server/training/step/eval_modules.h"

namespace braid {
namespace {

constexpr char kHost[] = "host";

std::string Owned(const ReplicaSet& served) {
  return absl::StrJoin(served.workers(), ", ",
                       [](std::string* out, const Worker* worker) { out->append(worker->name()); });
}

// Returns the index of the worker named `device`.
absl::StatusOr<size_t> FindWorker(const ReplicaSet& served, const std::string& device,
                                  const std::string& field) {
  for (size_t w = 0; w < served.size(); ++w) {
    if (served.worker(w).name() == device) {
      return w;
    }
  }
  return InvalidField(field, absl::StrCat("this server has no device '", Excerpt(device),
                                          "'; it has ", Owned(served)));
}

absl::StatusOr<std::vector<size_t>> FindWorkers(const ReplicaSet& served, const StageSpec& stage,
                                                const std::string& field) {
  std::vector<size_t> found;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    const std::string where = absl::StrCat(field, ".devices[", d, "]");
    BRAID_ASSIGN_OR_RETURN(const size_t w, FindWorker(served, stage.devices[d], where));
    if (std::find(found.begin(), found.end(), w) != found.end()) {
      return InvalidField(where, absl::StrCat("'", stage.devices[d],
                                              "' is given twice (expected each device once)"));
    }
    found.push_back(w);
  }
  return found;
}

// Checks that every parameter is in exactly one stage.
absl::Status CheckStages(const std::vector<StateEntry>& entries,
                         const std::vector<StageSpec>& stages) {
  std::map<const void*, std::pair<size_t, std::string>> owners;
  for (const StateEntry& entry : entries) {
    if (!entry.is_parameter) {
      continue;
    }
    std::vector<size_t> holders;
    for (size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].path.empty() || absl::StartsWith(entry.name, stages[s].path + ".")) {
        holders.push_back(s);
      }
    }
    if (holders.size() != 1) {
      return InvalidField("stages", absl::StrCat("parameter '", entry.name, "' is in ",
                                                 holders.size(), " stages (expected exactly one)"));
    }
    const auto [owner, inserted] =
        owners.try_emplace(entry.value.const_data_ptr(), std::make_pair(holders[0], entry.name));
    if (!inserted && entry.value.numel() > 0 && owner->second.first != holders[0]) {
      return InvalidField("stages",
                          absl::StrCat("parameters '", owner->second.second, "' and '", entry.name,
                                       "' are one tensor (put them in one stage)"));
    }
  }
  return absl::OkStatus();
}

// Returns the worker in `steps_on` with the name of `worker`; if it is empty, `worker`.
Worker& StepsOn(const std::vector<Worker*>& steps_on, Worker& worker) {
  const auto found = std::find_if(steps_on.begin(), steps_on.end(), [&](const Worker* other) {
    return other->name() == worker.name();
  });
  return found != steps_on.end() ? **found : worker;
}

absl::StatusOr<PlacedStage> PlaceStage(const ReplicaSet& served, const StageRole& role,
                                       const std::vector<size_t>& on,
                                       const std::vector<Worker*>& steps_on,
                                       const std::string& field) {
  std::vector<Worker*> workers;
  for (const size_t w : on) {
    workers.push_back(&served.worker(w));
  }
  std::vector<std::unique_ptr<Replica>> replicas(on.size());
  const absl::Status status = RunOnEach(workers, Phase::kLoad, [&](size_t r) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(replicas[r],
                           served.replica(on[r]).CloneStage(role, workers[r]->torch_device()));
    return absl::OkStatus();
  });
  if (absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) {
    return InvalidField(field + ".path", status.message());
  }
  BRAID_RETURN_IF_ERROR(status);
  for (Worker*& worker : workers) {
    worker = &StepsOn(steps_on, *worker);
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator, MakeCommunicator(workers));
  return PlacedStage{role.path, ReplicaSet(std::move(workers), std::move(replicas)),
                     std::move(communicator)};
}

// Returns the submodules of the model that run in evaluation mode in training.
absl::StatusOr<std::vector<std::string>> EvalModules(const ReplicaSet& served,
                                                     const std::vector<std::string>& patterns) {
  if (patterns.empty()) {
    return std::vector<std::string>();
  }
  std::vector<std::string> modules;
  BRAID_RETURN_IF_ERROR(RunOnEach(served.first_workers(1), Phase::kLoad, [&](size_t) {
    modules = served.replica(0).modules();
    return absl::OkStatus();
  }));
  BRAID_ASSIGN_OR_RETURN(std::vector<std::string> found, FindEvalModules(patterns, modules));
  if (const absl::Status status = served.replica(0).CheckEvalModules(found); !status.ok()) {
    return InvalidField("eval_modules", status.message());
  }
  return found;
}

absl::Status PlaceOutput(const ReplicaSet& served, const std::vector<Worker*>& steps_on,
                         TrainerSpec* spec, Placement* placement) {
  Worker& primary = placement->stages.back().replicas.worker(0);
  placement->output_worker = &primary;
  if (spec->output_device == kHost) {
    placement->output_device = c10::kCPU;
    return absl::OkStatus();
  }
  if (spec->output_device.empty()) {
    spec->output_device = primary.name();
  }
  BRAID_ASSIGN_OR_RETURN(const size_t w, FindWorker(served, spec->output_device, "output_device"));
  placement->output_worker = &StepsOn(steps_on, served.worker(w));
  placement->output_device = placement->output_worker->torch_device();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> Place(const ReplicaSet& served, TrainerSpec* spec,
                                const std::vector<Worker*>& steps_on) {
  BRAID_RETURN_IF_ERROR(served.replica(0).CheckTrainable(AutocastType(spec->precision)));
  if (spec->stages.empty()) {
    spec->stages.emplace_back();
  }
  std::vector<std::vector<size_t>> on;
  for (size_t s = 0; s < spec->stages.size(); ++s) {
    StageSpec& stage = spec->stages[s];
    const std::string field = absl::StrCat("stages[", s, "]");
    if (stage.path.empty() && spec->stages.size() > 1) {
      return InvalidField(field + ".path", "is empty (expected a submodule's path)");
    }
    if (stage.devices.empty()) {
      for (const Worker* worker : served.workers()) {
        stage.devices.push_back(worker->name());
      }
    }
    BRAID_ASSIGN_OR_RETURN(std::vector<size_t> workers, FindWorkers(served, stage, field));
    on.push_back(std::move(workers));
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> eval_modules,
                         EvalModules(served, spec->eval_modules));
  Placement placement;
  for (size_t s = 0; s < spec->stages.size(); ++s) {
    const StageRole role{.path = spec->stages[s].path,
                         .first = s == 0,
                         .last = s + 1 == spec->stages.size(),
                         .sync_batch_norm = spec->sync_batch_norm,
                         .eval_modules = eval_modules};
    BRAID_ASSIGN_OR_RETURN(PlacedStage stage, PlaceStage(served, role, on[s], steps_on,
                                                         absl::StrCat("stages[", s, "]")));
    placement.stages.push_back(std::move(stage));
  }
  std::vector<std::string> paths;
  for (const StageSpec& stage : spec->stages) {
    paths.push_back(stage.path);
  }
  std::vector<StateEntry> entries;
  absl::Status chain;
  BRAID_RETURN_IF_ERROR(RunOnEach(served.first_workers(1), Phase::kLoad, [&](size_t) {
    entries = served.replica(0).state();
    chain = served.replica(0).CheckStages(paths);
    return absl::OkStatus();
  }));
  BRAID_RETURN_IF_ERROR(CheckStages(entries, spec->stages));
  if (!chain.ok()) {
    return InvalidField("stages", chain.message());
  }
  BRAID_RETURN_IF_ERROR(PlaceOutput(served, steps_on, spec, &placement));
  return placement;
}

bool RemoveMissingDevices(const ReplicaSet& served, TrainerSpec* spec) {
  const auto missing = [&](const std::string& device) {
    return std::none_of(served.workers().begin(), served.workers().end(),
                        [&](const Worker* worker) { return worker->name() == device; });
  };
  bool any = false;
  for (StageSpec& stage : spec->stages) {
    any = std::erase_if(stage.devices, missing) > 0 || any;
  }
  if (!spec->output_device.empty() && spec->output_device != kHost &&
      missing(spec->output_device)) {
    spec->output_device.clear();
    any = true;
  }
  return any;
}

}  // namespace braid
