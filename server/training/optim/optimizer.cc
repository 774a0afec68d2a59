#include "server/training/optim/optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ATen/ops/full_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/training/optim/optimizer_kernels.h"
#include "server/training/optim/optimizer_spec.h"

namespace braid {
namespace {

constexpr char kMomentum[] = "momentum_buffer";

std::set<std::string> Required(const SgdSpec& spec) {
  return spec.momentum != 0 ? std::set<std::string>{kMomentum} : std::set<std::string>();
}
std::set<std::string> Required(const AdamSpec& spec) {
  std::set<std::string> names = {"exp_avg", "exp_avg_sq"};
  if (spec.amsgrad) {
    names.insert("max_exp_avg_sq");
  }
  return names;
}
std::set<std::string> Required(const RmsPropSpec& spec) {
  std::set<std::string> names = {"square_avg"};
  if (spec.centered) {
    names.insert("grad_avg");
  }
  if (spec.momentum != 0) {
    names.insert(kMomentum);
  }
  return names;
}
std::set<std::string> Required(const AdagradSpec&) { return {"sum"}; }

std::set<std::string> Required(const OptimizerSpec& spec, const ParameterGroups& groups) {
  std::set<std::string> names = std::visit([](const auto& kind) { return Required(kind); }, spec);
  for (const ParameterGroupSpec& group : groups.specs()) {
    if (group.momentum.value_or(0) != 0) {
      names.insert(kMomentum);
    }
  }
  return names;
}

// Returns the batch for parameters of this buffer, group and update count.
UpdatePlan::Batch& BatchOf(std::vector<UpdatePlan::Batch>& batches, size_t buffer, size_t group,
                           int64_t updates) {
  const auto found = std::find_if(batches.begin(), batches.end(), [&](const auto& batch) {
    return batch.buffer == buffer && batch.group == group && batch.updates == updates;
  });
  if (found != batches.end()) {
    return *found;
  }
  batches.push_back({buffer, group, updates, {}, {}});
  return batches.back();
}

// Returns the parts of `ranges` within `part`.
std::vector<Slice> Within(const Slice& part, const std::vector<Slice>& ranges) {
  std::vector<Slice> slices;
  for (const Slice& range : ranges) {
    const Slice slice = {std::max(range.begin, part.begin), std::min(range.end, part.end)};
    if (slice.begin < slice.end) {
      slices.push_back(slice);
    }
  }
  return slices;
}

std::vector<at::Tensor> Cut(const at::Tensor& flat, const std::vector<Slice>& slices) {
  std::vector<at::Tensor> tensors;
  for (const Slice& slice : slices) {
    tensors.push_back(flat.narrow(0, slice.begin, slice.size()));
  }
  return tensors;
}

}  // namespace

Optimizer::Optimizer(const OptimizerSpec& spec, const ParameterGroups& groups,
                     const FlatParameters& parameters)
    : spec_(spec),
      groups_(groups),
      slots_(parameters.slots()),
      values_(parameters.values()),
      required_(Required(spec, groups)),
      updates_(slots_.size(), 0) {}

UpdatePlan Optimizer::Plan(const std::vector<bool>& reached,
                           const std::vector<GroupValues>& values) const {
  UpdatePlan plan;
  for (size_t p = 0; p < slots_.size(); ++p) {
    if (!reached[p] || groups_.frozen(p)) {
      continue;
    }
    const FlatSlot& slot = slots_[p];
    const size_t group = groups_.group_of(p);
    UpdatePlan::Batch& batch = BatchOf(plan.batches, slot.buffer, group, updates_[p]);
    batch.values = values[group];
    if (!batch.ranges.empty() && batch.ranges.back().end == slot.offset) {
      batch.ranges.back().end += slot.padded;
    } else {
      batch.ranges.push_back({slot.offset, slot.offset + slot.padded});
    }
    plan.parameters.push_back(p);
  }
  return plan;
}

void Optimizer::Prepare(const UpdatePlan& plan) {
  for (const std::string& name : required_) {
    Made(name);
  }
  // A schedule may turn momentum on.
  for (const UpdatePlan::Batch& batch : plan.batches) {
    if (batch.values.momentum != 0 && TakesMomentum(spec_)) {
      Made(kMomentum);
    }
  }
}

void Optimizer::Apply(const FlatParameters& parameters, const UpdatePlan& plan, size_t part,
                      size_t parts) const {
  const c10::AutoGradMode no_grad(false);
  for (const UpdatePlan::Batch& batch : plan.batches) {
    const at::Tensor& flat = parameters.values()[batch.buffer];
    const std::vector<Slice> slices = Within(SliceOf(flat, part, parts), batch.ranges);
    if (slices.empty()) {
      continue;
    }
    UpdateSlices cut = {Cut(flat, slices), Cut(parameters.gradients()[batch.buffer], slices), {}};
    for (const auto& [name, buffers] : state_) {
      cut.state[name] = Cut(buffers[batch.buffer], slices);
    }
    UpdateInPlace(spec_, batch.values, batch.updates, cut);
  }
}

void Optimizer::Commit(const UpdatePlan& plan) {
  for (const size_t p : plan.parameters) {
    ++updates_[p];
  }
}

std::vector<Optimizer::StateView> Optimizer::state(const std::vector<Parameter>& parameters) const {
  std::vector<StateView> views;
  for (size_t p = 0; p < slots_.size(); ++p) {
    for (const auto& [name, buffers] : state_) {
      if (!groups_.frozen(p)) {
        views.push_back({absl::StrCat(parameters[p].name, ".", name),
                         ViewOf(buffers, p, parameters[p].value.sizes())});
      }
    }
  }
  return views;
}

absl::Status Optimizer::Check(const std::vector<Parameter>& parameters,
                              const std::vector<StateView>& state,
                              const std::vector<int64_t>& updates) const {
  if (updates.size() != slots_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer state of ", updates.size(), " parameters for ", slots_.size()));
  }
  BRAID_ASSIGN_OR_RETURN(const StateByName sorted, Sort(parameters, state));
  for (size_t p = 0; p < slots_.size(); ++p) {
    if (updates[p] < 0) {
      return absl::DataLossError("the optimizer's update counts are damaged");
    }
    for (const auto& [name, tensors] : sorted) {
      if (updates[p] > 0 && !tensors[p].defined()) {
        return absl::DataLossError(
            absl::StrCat("optimizer state ", parameters[p].name, ".", name, " is missing"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Optimizer::Load(const std::vector<Parameter>& parameters,
                             const std::vector<StateView>& state,
                             const std::vector<int64_t>& updates) {
  BRAID_RETURN_IF_ERROR(Check(parameters, state, updates));
  BRAID_ASSIGN_OR_RETURN(const StateByName sorted, Sort(parameters, state));
  const c10::AutoGradMode no_grad(false);
  for (const auto& [name, buffers] : state_) {
    for (const at::Tensor& buffer : buffers) {
      buffer.fill_(Initial(name));
    }
  }
  for (const auto& [name, tensors] : sorted) {
    const Tensors& buffers = Made(name);
    for (size_t p = 0; p < slots_.size(); ++p) {
      if (tensors[p].defined()) {
        ViewOf(buffers, p, parameters[p].value.sizes()).copy_(tensors[p]);
      }
    }
  }
  updates_ = updates;
  return absl::OkStatus();
}

absl::StatusOr<Optimizer::StateByName> Optimizer::Sort(const std::vector<Parameter>& parameters,
                                                       const std::vector<StateView>& views) const {
  std::set<std::string> possible = required_;
  if (TakesMomentum(spec_)) {
    possible.insert(kMomentum);
  }
  std::map<std::string, std::pair<std::string, size_t>> places;
  for (const std::string& name : possible) {
    for (size_t p = 0; p < slots_.size(); ++p) {
      places[absl::StrCat(parameters[p].name, ".", name)] = {name, p};
    }
  }
  StateByName sorted;
  for (const std::string& name : required_) {
    sorted[name].resize(slots_.size());
  }
  for (const StateView& view : views) {
    const auto found = places.find(view.name);
    if (found == places.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("optimizer state '", Excerpt(view.name),
                       "' does not match this model and optimizer ", OptimizerName(spec_)));
    }
    const auto& [name, p] = found->second;
    const at::Tensor& like = parameters[p].value;
    if (view.value.sizes() != like.sizes() || view.value.scalar_type() != like.scalar_type()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "optimizer state ", view.name, " has another shape or datatype than its parameter"));
    }
    Tensors& tensors = sorted[name];
    tensors.resize(slots_.size());
    if (tensors[p].defined()) {
      return absl::DataLossError(absl::StrCat("optimizer state ", view.name, " is there twice"));
    }
    tensors[p] = view.value;
  }
  return sorted;
}

double Optimizer::Initial(const std::string& name) const {
  const auto* adagrad = std::get_if<AdagradSpec>(&spec_);
  return adagrad != nullptr && name == "sum" ? adagrad->initial_accumulator_value : 0;
}

Optimizer::Tensors& Optimizer::Made(const std::string& name) {
  const auto found = state_.find(name);
  if (found != state_.end()) {
    return found->second;
  }
  Tensors buffers;
  for (const at::Tensor& values : values_) {
    buffers.push_back(at::full_like(values, Initial(name)));
  }
  return state_.emplace(name, std::move(buffers)).first->second;
}

at::Tensor Optimizer::ViewOf(const Tensors& buffers, size_t p, at::IntArrayRef shape) const {
  const FlatSlot& slot = slots_[p];
  return buffers[slot.buffer].narrow(0, slot.offset, slot.numel).view(shape);
}

}  // namespace braid
