#include "server/training/step/snapshot.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using TensorsByName = std::map<std::string, at::Tensor>;

std::string NameInModel(const Stage& stage, const std::string& name) {
  return stage.path().empty() ? name : absl::StrCat(stage.path(), ".", name);
}

absl::Status CheckEntry(const StateEntry& entry, const TensorsByName& saved) {
  const auto found = saved.find(entry.name);
  if (found == saved.end()) {
    return absl::OkStatus();
  }
  if (found->second.sizes() != entry.value.sizes() ||
      found->second.scalar_type() != entry.value.scalar_type()) {
    return absl::FailedPreconditionError(
        absl::StrCat("its '", entry.name, "' is ", c10::toString(found->second.scalar_type()), " ",
                     ShapeString(found->second.sizes().vec()), ", the model's ",
                     c10::toString(entry.value.scalar_type()), " ",
                     ShapeString(entry.value.sizes().vec()), ": it belongs to another model"));
  }
  return absl::OkStatus();
}

TensorsByName ByName(const TrainingSnapshot& snapshot) {
  TensorsByName saved;
  for (const StateTensor& entry : snapshot.model) {
    saved[entry.tensor.name] = View(entry.tensor);
  }
  return saved;
}

// Returns the optimizer state of `stage`, by names within the stage.
std::vector<Optimizer::StateView> OptimizerState(const Stage& stage,
                                                 const TrainingSnapshot& snapshot) {
  const std::vector<std::string> names = stage.ParameterNames();
  const size_t prefix = stage.path().empty() ? 0 : stage.path().size() + 1;
  std::vector<Optimizer::StateView> views;
  for (const HostTensor& tensor : snapshot.optimizer) {
    const bool mine = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return absl::StartsWith(tensor.name, name + ".") &&
             tensor.name.find('.', name.size() + 1) == std::string::npos;
    });
    if (mine) {
      views.push_back({tensor.name.substr(prefix), View(tensor)});
    }
  }
  return views;
}

std::vector<int64_t> Updates(const Stage& stage, const TrainingSnapshot& snapshot, size_t first) {
  const auto begin = snapshot.updates.begin() + static_cast<int64_t>(first);
  return {begin, begin + static_cast<int64_t>(stage.flat(0).slots().size())};
}

}  // namespace

absl::Status SaveStage(Stage& stage, size_t replicas, TrainingSnapshot* snapshot) {
  BRAID_RETURN_IF_ERROR(RunOnEach({&stage.worker(0)}, Phase::kCopyOut, [&](size_t) {
    for (const StateEntry& entry : stage.ShareChangingState()) {
      snapshot->model.push_back({ToHost(entry.value, entry.name), entry.is_parameter});
    }
    for (const auto& view : stage.optimizer(0).state(stage.replica(0).parameters())) {
      snapshot->optimizer.push_back(ToHost(view.value.clone(), NameInModel(stage, view.name)));
    }
    const std::vector<int64_t>& updates = stage.optimizer(0).updates();
    snapshot->updates.insert(snapshot->updates.end(), updates.begin(), updates.end());
    for (const std::string& name : stage.ParameterNames()) {
      snapshot->parameters.push_back(name);
    }
    return absl::OkStatus();
  }));
  std::vector<std::vector<HostTensor>> gradients(replicas);
  const std::vector<Worker*> holding(stage.workers().begin(),
                                     stage.workers().begin() + static_cast<int64_t>(replicas));
  BRAID_RETURN_IF_ERROR(RunOnEach(holding, Phase::kCopyOut, [&](size_t r) {
    const FlatParameters& flat = stage.flat(r);
    for (size_t p = 0; p < flat.slots().size(); ++p) {
      if (flat.reached()[p]) {
        const std::string name = stage.replica(r).parameters()[p].name;
        gradients[r].push_back(
            ToHost(flat.gradient(p).clone(), absl::StrCat(r, "/", NameInModel(stage, name))));
      }
    }
    return absl::OkStatus();
  }));
  for (std::vector<HostTensor>& of_replica : gradients) {
    for (HostTensor& gradient : of_replica) {
      snapshot->gradients.push_back(std::move(gradient));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStage(const Stage& stage, const TrainingSnapshot& snapshot, size_t first) {
  const TensorsByName saved = ByName(snapshot);
  for (const StateEntry& entry : stage.changing_state()) {
    if (!saved.contains(entry.name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("it has no '", entry.name, "': it belongs to another model"));
    }
  }
  for (const StateEntry& entry : stage.state()) {
    BRAID_RETURN_IF_ERROR(CheckEntry(entry, saved));
  }
  const std::vector<std::string> names = stage.ParameterNames();
  if (first + names.size() > snapshot.parameters.size() ||
      !std::equal(names.begin(), names.end(),
                  snapshot.parameters.begin() + static_cast<int64_t>(first))) {
    return absl::FailedPreconditionError("it has other trainable parameters");
  }
  return stage.optimizer(0).Check(stage.replica(0).parameters(), OptimizerState(stage, snapshot),
                                  Updates(stage, snapshot, first));
}

absl::Status RestoreStage(Stage& stage, const TrainingSnapshot& snapshot, size_t first) {
  const c10::AutoGradMode no_grad(false);
  BRAID_RETURN_IF_ERROR(stage.optimizer(0).Load(stage.replica(0).parameters(),
                                                OptimizerState(stage, snapshot),
                                                Updates(stage, snapshot, first)));
  const TensorsByName saved = ByName(snapshot);
  std::vector<at::Tensor> parameters;
  for (const StateEntry& entry : stage.state()) {
    const auto found = saved.find(entry.name);
    if (!entry.is_parameter) {
      entry.value.copy_(found->second);
    }
    const bool sets = entry.is_parameter && found != saved.end();
    parameters.push_back(sets ? found->second : at::Tensor());
  }
  stage.SetParameters(/*r=*/0, parameters);
  stage.CommitBuffers();
  return absl::OkStatus();
}

void RestoreGradients(Stage& stage, const TrainingSnapshot& snapshot, size_t r) {
  // Gradients of replicas that no longer exist are added to the first replica's.
  FlatParameters& flat = stage.flat(r);
  const std::vector<std::string> names = stage.ParameterNames();
  flat.Accumulate(std::vector<at::Tensor>(names.size()), /*first=*/true);
  for (const HostTensor& tensor : snapshot.gradients) {
    const size_t slash = tensor.name.find('/');
    const auto name = std::find(names.begin(), names.end(), tensor.name.substr(slash + 1));
    const size_t owner = std::stoul(tensor.name.substr(0, slash));
    if (name != names.end() && (owner < stage.size() ? owner : 0) == r) {
      std::vector<at::Tensor> one(names.size());
      one[static_cast<size_t>(name - names.begin())] = View(tensor).to(flat.values()[0].device());
      flat.Accumulate(one, /*first=*/false);
    }
  }
}

}  // namespace braid
