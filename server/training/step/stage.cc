#include "server/training/step/stage.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "ATen/ops/equal.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/parallel/copy_on_write.h"
#include "server/parallel/finite.h"

namespace braid {
namespace {

std::string WholeName(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

bool IsFinite(const at::Tensor& values) {
  return !values.is_floating_point() || std::isfinite(RangeShare(values));
}

}  // namespace

Link LinkOf(const PlacedStage& placed) {
  if (placed.communicator != nullptr) {
    return Link::kNccl;
  }
  const std::vector<Worker*>& workers = placed.replicas.workers();
  const bool on_host = std::all_of(workers.begin(), workers.end(), [](const Worker* worker) {
    return worker->torch_device().is_cpu();
  });
  return on_host ? Link::kSharedMemory : Link::kCopies;
}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(PlacedStage placed,
                                                     const ParameterGroups& groups,
                                                     bool share_parameters) {
  std::unique_ptr<Stage> stage(new Stage(std::move(placed), groups, share_parameters));
  const std::vector<Worker*>& workers = stage->workers();
  std::vector<bool> frozen;
  for (size_t p = 0; p < stage->replica(0).parameters().size(); ++p) {
    frozen.push_back(groups.frozen(p));
  }
  std::vector<std::optional<FlatParameters>> flat(workers.size());
  BRAID_RETURN_IF_ERROR(RunOnEach({workers[0]}, Phase::kLoad, [&](size_t) {
    flat[0].emplace(stage->replica(0), frozen);
    stage->buffers_ = FlatBuffers(stage->replica(0).buffers());
    return absl::OkStatus();
  }));
  BRAID_RETURN_IF_ERROR(RunOnEach(workers, Phase::kLoad, [&](size_t r) {
    if (r > 0 && share_parameters) {
      flat[r].emplace(stage->replica(r), frozen, *flat[0]);
    } else if (r > 0) {
      flat[r].emplace(stage->replica(r), frozen);
    }
    for (size_t p = 0; p < frozen.size(); ++p) {
      if (frozen[p]) {
        stage->replica(r).Freeze(p);
      }
    }
    return absl::OkStatus();
  }));
  for (std::optional<FlatParameters>& parameters : flat) {
    stage->flat_.push_back(*std::move(parameters));
  }
  return stage;
}

std::vector<at::Tensor> Stage::OfAll(const std::vector<at::Tensor>& (FlatParameters::*member)()
                                         const,
                                     size_t buffer) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(flat_.size());
  for (const FlatParameters& flat : flat_) {
    tensors.push_back((flat.*member)()[buffer]);
  }
  return tensors;
}

std::vector<std::string> Stage::ParameterNames() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : replica(0).parameters()) {
    names.push_back(WholeName(path_, parameter.name));
  }
  return names;
}

bool Stage::trains() const {
  const std::vector<Parameter>& parameters = replica(0).parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Parameter& each) { return each.value.requires_grad(); });
}

std::vector<bool> Stage::Reached(size_t replicas) const {
  std::vector<bool> reached = flat_[0].reached();
  for (size_t r = 1; r < replicas; ++r) {
    for (size_t p = 0; p < reached.size(); ++p) {
      reached[p] = reached[p] || flat_[r].reached()[p];
    }
  }
  return reached;
}

absl::Status Stage::CheckBuffers() const {
  const std::vector<at::Tensor> now = replica(0).buffers();
  for (size_t b = 0; b < now.size(); ++b) {
    const at::Tensor& committed = buffers_.views()[b];
    if (now[b].sizes() != committed.sizes() || now[b].scalar_type() != committed.scalar_type()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the model replaced a buffer of shape ", ShapeString(committed.sizes().vec()),
          " by one of shape ", ShapeString(now[b].sizes().vec()),
          ": buffers must keep shape and datatype"));
    }
  }
  return absl::OkStatus();
}

bool Stage::BuffersStayFinite() const {
  const FlatBuffers now(replica(0).buffers());
  if (std::all_of(now.flat().begin(), now.flat().end(), IsFinite)) {
    return true;
  }
  for (size_t b = 0; b < now.views().size(); ++b) {
    if (!IsFinite(now.views()[b]) && IsFinite(buffers_.views()[b])) {
      return false;
    }
  }
  return true;
}

void Stage::CommitBuffers() {
  buffers_.Assign(replica(0).buffers());
  ResetBuffers(0);
}

void Stage::MakeOptimizer(const OptimizerSpec& spec) {
  optimizer_spec_ = spec;
  optimizers_.resize(size());
  optimizers_[0] = std::make_unique<Optimizer>(spec, groups_, flat_[0]);
}

absl::Status Stage::CopyOptimizer(size_t r) {
  optimizers_[r] = std::make_unique<Optimizer>(optimizer_spec_, groups_, flat_[r]);
  return optimizers_[r]->Load(replica(r).parameters(),
                              optimizers_[0]->state(replica(0).parameters()),
                              optimizers_[0]->updates());
}

int64_t Stage::bytes(size_t r) const {
  int64_t bytes = 0;
  const auto add = [&bytes](const at::Tensor& tensor) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  };
  if (r == 0 || !share_parameters_) {
    for (const at::Tensor& values : flat_[r].values()) {
      add(values);
    }
  }
  for (const at::Tensor& gradients : flat_[r].gradients()) {
    add(gradients);
  }
  // Every replica has buffers of these sizes; the primary's device also holds the committed ones.
  for (const at::Tensor& buffer : buffers_.views()) {
    add(buffer);
    r == 0 ? add(buffer) : void();
  }
  for (const at::Tensor& buffer : earlier_buffers_.views()) {
    r == 0 ? add(buffer) : void();
  }
  if (optimizers_[r] != nullptr) {
    for (const auto& view : optimizers_[r]->state(replica(r).parameters())) {
      add(view.value);
    }
  }
  return bytes;
}

std::vector<StateEntry> Stage::state() const {
  std::vector<StateEntry> entries = replica(0).state();
  for (StateEntry& entry : entries) {
    entry.name = WholeName(path_, entry.name);
  }
  return entries;
}

const at::Tensor* Stage::FlatValues(size_t r, const at::Tensor& parameter) const {
  const std::vector<at::Tensor>& values = flat_[r].values();
  const auto found = std::find_if(values.begin(), values.end(), [&](const at::Tensor& whole) {
    return parameter.is_alias_of(whole);
  });
  return found == values.end() ? nullptr : &*found;
}

std::vector<StateEntry> Stage::ShareParameters(size_t r) const {
  std::vector<StateEntry> shared;
  for (const StateEntry& entry : replica(r).state()) {
    if (!entry.is_parameter) {
      continue;
    }
    shared.push_back(
        {WholeName(path_, entry.name), ShareValue(r, entry.value), /*is_parameter=*/true});
  }
  return shared;
}

at::Tensor Stage::ShareValue(size_t r, const at::Tensor& value) const {
  const at::Tensor* whole = FlatValues(r, value);
  return whole == nullptr ? value : ShareMemory(*whole, value);
}

std::vector<StateEntry> Stage::ShareChangingState() const {
  std::vector<StateEntry> entries = changing_state();
  for (StateEntry& entry : entries) {
    entry.value = entry.is_parameter ? ShareValue(/*r=*/0, entry.value) : entry.value.clone();
  }
  return entries;
}

void Stage::SetParameters(size_t r, const std::vector<at::Tensor>& values) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<StateEntry> state = replica(r).state();
  for (size_t i = 0; i < state.size(); ++i) {
    const at::Tensor& to = state[i].value;
    if (!values[i].defined() || to.is_alias_of(values[i])) {
      continue;
    }
    if (FlatValues(r, to) != nullptr) {
      to.copy_(values[i]);
    } else if (const at::Tensor value = values[i].to(to.device()); !at::equal(to, value)) {
      // The memory is the served version's.
      replica(r).BindEntry(i, value.is_alias_of(values[i]) ? value.clone() : value);
    }
  }
}

void Stage::UnshareParameters(size_t r) {
  if (r == 0 || !share_parameters_) {
    for (const at::Tensor& whole : flat_[r].values()) {
      LeaveSharedMemory(whole);
    }
  }
}

std::vector<StateEntry> Stage::trained_state() const {
  std::vector<StateEntry> entries;
  const std::vector<Parameter>& parameters = replica(0).parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!groups_.frozen(p)) {
      entries.push_back({WholeName(path_, parameters[p].name), parameters[p].value.detach(),
                         /*is_parameter=*/true});
    }
  }
  return entries;
}

std::vector<StateEntry> Stage::changing_state() const {
  std::vector<StateEntry> entries = trained_state();
  for (StateEntry& entry : state()) {
    if (!entry.is_parameter) {
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace braid
