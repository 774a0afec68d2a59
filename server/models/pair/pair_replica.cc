#include "server/models/pair/pair_replica.h"

#include <algorithm>
#include <utility>

#include "ATen/autocast_mode.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "server/base/abbreviate_names.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/name_binding.h"
#include "server/parallel/copy_tensors.h"
#include "server/parallel/host_copy.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"

namespace braid {
namespace {

absl::StatusOr<size_t> FindProgram(const PairStage& part, std::optional<c10::ScalarType> autocast) {
  for (size_t p = 0; p < part.programs.size(); ++p) {
    if (part.programs[p].autocast == autocast) {
      return p;
    }
  }
  const absl::string_view name = PrecisionName(autocast);
  return absl::FailedPreconditionError(
      absl::StrCat("the model was exported without graphs of precision ", name,
                   " (export it with precisions=[\"", name, "\"])"));
}

// INTERNAL, like all errors that a model raises for its inputs. requirement: reason for the
// minimum.
absl::Status CheckRows(const std::vector<at::Tensor>& inputs, int64_t min_rows,
                       absl::string_view requirement) {
  const int64_t rows = inputs.front().size(0);
  if (rows >= min_rows) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("Expected ", requirement, " (at least ", min_rows, " rows), got ", rows));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> PairReplica::Create(
    std::shared_ptr<const PairPackage> package, std::shared_ptr<const ModelConfig> config,
    PairBinding binding, c10::Device device) {
  const PairManifest& manifest = package->manifest();
  if (device.is_cpu() != (manifest.device == "cpu")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model.pt2 was exported for ", manifest.device == "cpu" ? "the CPU" : "GPUs",
        " and cannot run on ", c10::str(device), " (export it from a module on such a device)"));
  }
  BRAID_ASSIGN_OR_RETURN(const auto weights, package->Weights());
  Tensors state(weights->size());
  for (size_t i = 0; i < state.size(); ++i) {
    if (manifest.state[i].tensor == i) {
      // On the CPU, replicas that are not trained share the memory.
      state[i] = (*weights)[i].to(device);
    }
  }
  const PairStage* part = &manifest.stages.front();
  std::unique_ptr<PairReplica> replica(new PairReplica(
      {std::move(package), std::move(config), std::move(binding), part, StageRole()},
      std::move(state), device));
  if (device.is_cpu()) {
    replica->weights_ = weights;
  }
  return replica;
}

PairReplica::PairReplica(Shape shape, Tensors state, c10::Device device)
    : shape_(std::move(shape)),
      device_(device),
      state_(std::move(state)),
      parameter_of_(state_.size()),
      graphs_(shape_.part->programs.size()) {
  std::vector<bool> seen(state_.size(), false);
  for (const size_t i : EntriesOf(*shape_.part, manifest())) {
    const PairEntry& entry = manifest().state[i];
    const size_t tensor = entry.tensor;
    if (seen[tensor]) {
      continue;
    }
    seen[tensor] = true;
    if (!entry.is_parameter) {
      buffers_.push_back(tensor);
    } else if (entry.trainable) {
      parameter_of_[tensor] = parameters_.size();
      // A separate tensor object, so that its storage, version counter and requires_grad belong to
      // this replica.
      state_[tensor] = state_[tensor].variable_data();
      state_[tensor].set_requires_grad(true);
      parameters_.push_back({LocalName(entry), state_[tensor]});
    }
  }
}

std::vector<size_t> PairReplica::EntriesOf(const PairStage& part, const PairManifest& manifest) {
  std::vector<size_t> entries;
  for (size_t i = 0; i < manifest.state.size(); ++i) {
    if (part.path.empty() || absl::StartsWith(manifest.state[i].name, part.path + ".")) {
      entries.push_back(i);
    }
  }
  return entries;
}

std::string PairReplica::LocalName(const PairEntry& entry) const {
  const std::string& path = shape_.part->path;
  return path.empty() ? entry.name : entry.name.substr(path.size() + 1);
}

absl::StatusOr<size_t> PairReplica::CurrentProgram() const {
  const c10::DeviceType device = manifest().device == "cpu" ? c10::kCPU : c10::kCUDA;
  std::optional<c10::ScalarType> autocast;
  if (at::autocast::is_autocast_enabled(device)) {
    autocast = at::autocast::get_autocast_dtype(device);
  }
  return FindProgram(*shape_.part, autocast);
}

absl::Status PairReplica::CheckTrainable(std::optional<c10::ScalarType> autocast) const {
  BRAID_ASSIGN_OR_RETURN(const size_t program, FindProgram(*shape_.part, autocast));
  if (!shape_.part->programs[program].forward) {
    return absl::FailedPreconditionError(
        "the model has no trainable parameters (all were frozen when it was exported)");
  }
  if (!parameters_.empty() && !shape_.part->programs[program].backward) {
    return absl::FailedPreconditionError(
        "the package has no backward graph (no output depends on a trainable parameter)");
  }
  return absl::OkStatus();
}

std::optional<std::string> PairReplica::DescribeNonAdditiveParameter() const {
  for (const PairProgram& program : shape_.part->programs) {
    if (!program.backward) {
      continue;
    }
    for (const PairSlot& slot : program.backward->outputs) {
      const bool trained = slot.role == PairRole::kParameterGradient &&
                           parameters_[*parameter_of_[slot.index]].value.requires_grad();
      if (trained && !slot.additive) {
        return absl::StrCat("'", manifest().state[slot.index].name, "'");
      }
    }
  }
  return std::nullopt;
}

Executor& PairReplica::ExecutorOf(const PairGraph& graph, std::unique_ptr<Executor>* made) const {
  if (*made == nullptr) {
    *made = shape_.package->graph(graph).MakeExecutor(device_);
  }
  return **made;
}

Executor& PairReplica::BackwardExecutor(size_t program, const std::vector<bool>& wanted) {
  Graphs& graphs = graphs_[program];
  if (graphs.backward == nullptr || graphs.backward_outputs != wanted) {
    const PairGraph& graph = *shape_.part->programs[program].backward;
    graphs.backward = shape_.package->graph(graph).MakeExecutor(device_, wanted);
    graphs.backward_outputs = wanted;
  }
  return *graphs.backward;
}

PairReplica::Tensors PairReplica::FromConfig(const Tensors& inputs) const {
  if (!shape_.role.first) {
    return inputs;
  }
  Tensors ordered;
  ordered.reserve(inputs.size());
  for (const size_t i : shape_.binding.inputs) {
    ordered.push_back(ToModel(inputs[i], shape_.config->inputs[i]));
  }
  return ordered;
}

PairReplica::Tensors PairReplica::ToConfig(const Tensors& outputs) const {
  if (!shape_.role.last) {
    return outputs;
  }
  Tensors ordered;
  ordered.reserve(outputs.size());
  for (size_t o = 0; o < shape_.binding.outputs.size(); ++o) {
    ordered.push_back(FromModel(outputs[shape_.binding.outputs[o]], shape_.config->outputs[o]));
  }
  return ordered;
}

absl::StatusOr<std::vector<at::Tensor>> PairReplica::Forward(const std::vector<at::Tensor>& inputs,
                                                             Mode mode) {
  if (mode == Mode::kTrain) {
    BRAID_ASSIGN_OR_RETURN(const ForwardPass pass, RunForward(inputs));
    return ToConfig(pass.outputs);
  }
  BRAID_ASSIGN_OR_RETURN(const size_t program, CurrentProgram());
  const PairGraph& eval = shape_.part->programs[program].eval;
  const Tensors given = FromConfig(inputs);
  BRAID_RETURN_IF_ERROR(
      CheckRows(given, shape_.part->min_evaluation_rows, "the minimum batch of the export"));
  Tensors arguments;
  arguments.reserve(eval.inputs.size());
  for (const PairSlot& slot : eval.inputs) {
    arguments.push_back(slot.role == PairRole::kInput ? given[slot.index] : state_[slot.index]);
  }
  const c10::impl::ExcludeDispatchKeyGuard casts_are_in_the_graph(c10::autocast_dispatch_keyset);
  Tensors results = ExecutorOf(eval, &graphs_[program].eval).RunTensors(std::move(arguments));
  Tensors outputs(results.size());
  for (size_t o = 0; o < results.size(); ++o) {
    outputs[eval.outputs[o].index] = std::move(results[o]);
  }
  return ToConfig(outputs);
}

absl::StatusOr<PairReplica::ForwardPass> PairReplica::RunForward(const Tensors& inputs) {
  ForwardPass pass;
  BRAID_ASSIGN_OR_RETURN(pass.program, CurrentProgram());
  const PairProgram& program = shape_.part->programs[pass.program];
  BRAID_RETURN_IF_ERROR(CheckTrainable(program.autocast));
  for (const at::Tensor& input : inputs) {
    pass.requires_grad.push_back(input.requires_grad());
  }
  pass.inputs = FromConfig(inputs);
  if (!shape_.role.sync_batch_norm) {
    BRAID_RETURN_IF_ERROR(CheckRows(pass.inputs, shape_.part->min_training_rows,
                                    "more than 1 value per channel when training"));
  }
  pass.state_before = state_;
  Tensors arguments;
  arguments.reserve(program.forward->inputs.size());
  for (const PairSlot& slot : program.forward->inputs) {
    arguments.push_back(slot.role == PairRole::kInput ? pass.inputs[slot.index]
                                                      : state_[slot.index]);
  }
  const c10::impl::ExcludeDispatchKeyGuard casts_are_in_the_graph(c10::autocast_dispatch_keyset);
  Tensors results =
      ExecutorOf(*program.forward, &graphs_[pass.program].forward).RunTensors(std::move(arguments));
  pass.outputs.resize(shape_.part->outputs.size());
  pass.saved.resize(program.saved);
  for (size_t r = 0; r < results.size(); ++r) {
    const PairSlot& slot = program.forward->outputs[r];
    at::Tensor& place = slot.role == PairRole::kOutput  ? pass.outputs[slot.index]
                        : slot.role == PairRole::kSaved ? pass.saved[slot.index]
                                                        : state_[slot.index];
    place = std::move(results[r]);
  }
  pass.state_after = state_;
  return pass;
}

absl::StatusOr<std::vector<at::Tensor>> PairReplica::ForwardForTraining(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  if (mode != Mode::kTrain) {
    return absl::FailedPreconditionError(
        "an exported pair has no backward pass in evaluation mode (run the forward pass in "
        "training mode)");
  }
  BRAID_ASSIGN_OR_RETURN(pass_, RunForward(inputs));
  return ToConfig(pass_->outputs);
}

PairReplica::Tensors PairReplica::OutputGradients(const ForwardPass& pass,
                                                  const Tensors& gradients) const {
  Tensors ordered(pass.outputs.size());
  for (size_t o = 0; o < gradients.size(); ++o) {
    const size_t output = shape_.role.last ? shape_.binding.outputs[o] : o;
    if (gradients[o].defined() && pass.outputs[output].is_floating_point()) {
      ordered[output] = gradients[o].reshape(pass.outputs[output].sizes()).contiguous();
    }
  }
  return ordered;
}

at::Tensor PairReplica::BackwardArgument(const PairSlot& slot, const ForwardPass& pass,
                                         const Tensors& output_gradients) const {
  switch (slot.role) {
    case PairRole::kInput:
      return pass.inputs[slot.index];
    case PairRole::kBuffer:
      return pass.state_before[slot.index];
    case PairRole::kNewBuffer:
      return pass.state_after[slot.index];
    case PairRole::kOutput:
      return pass.outputs[slot.index];
    case PairRole::kSaved:
      return pass.saved[slot.index];
    case PairRole::kOutputGradient:
      return output_gradients[slot.index].defined() ? output_gradients[slot.index]
                                                    : at::zeros_like(pass.outputs[slot.index]);
    default:  // A parameter. ParsePairManifest() rejects other roles.
      return state_[slot.index];
  }
}

std::vector<bool> PairReplica::WantedGradients(const ForwardPass& pass,
                                               const Tensors& output_gradients) const {
  const PairGraph& backward = *shape_.part->programs[pass.program].backward;
  std::vector<bool> wanted;
  for (const PairSlot& slot : backward.outputs) {
    const bool reached =
        std::any_of(slot.depends_on.begin(), slot.depends_on.end(),
                    [&](size_t output) { return output_gradients[output].defined(); });
    const bool requested = slot.role == PairRole::kInputGradient
                               ? pass.requires_grad[slot.index]
                               : parameters_[*parameter_of_[slot.index]].value.requires_grad();
    wanted.push_back(reached && requested);
  }
  return wanted;
}

absl::StatusOr<Gradients> PairReplica::Backward(const std::vector<at::Tensor>& output_gradients,
                                                const OnGradient& on_gradient) {
  std::optional<ForwardPass> pass = std::exchange(pass_, std::nullopt);
  const PairProgram& program = shape_.part->programs[pass->program];
  Gradients gradients;
  gradients.parameters.resize(parameters_.size());
  gradients.inputs.resize(pass->requires_grad.size());
  if (!program.backward) {
    return gradients;
  }
  const Tensors given = OutputGradients(*pass, output_gradients);
  const std::vector<bool> wanted = WantedGradients(*pass, given);
  // Number of gradients to be added up: tied parameters have one for each name.
  std::vector<size_t> missing(parameters_.size());
  for (size_t r = 0; r < wanted.size(); ++r) {
    const PairSlot& slot = program.backward->outputs[r];
    if (wanted[r] && slot.role != PairRole::kInputGradient) {
      ++missing[*parameter_of_[slot.index]];
    }
  }
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) {
    return gradients;
  }
  Executor& backward = BackwardExecutor(pass->program, wanted);
  std::vector<c10::IValue> arguments;
  arguments.reserve(program.backward->inputs.size());
  for (const PairSlot& slot : program.backward->inputs) {
    arguments.emplace_back(BackwardArgument(slot, *pass, given));
  }
  pass.reset();  // The graph frees saved tensors after their last use.
  std::vector<c10::IValue> results =
      backward.Run(std::move(arguments), [&](size_t r, const c10::IValue& value) {
        const PairSlot& slot = program.backward->outputs[r];
        if (slot.role == PairRole::kInputGradient) {
          return;
        }
        const size_t parameter = *parameter_of_[slot.index];
        at::Tensor& sum = gradients.parameters[parameter];
        sum = sum.defined() ? sum + value.toTensor() : value.toTensor();
        if (--missing[parameter] == 0 && on_gradient) {
          on_gradient(parameter, sum);
        }
      });
  for (size_t r = 0; r < results.size(); ++r) {
    const PairSlot& slot = program.backward->outputs[r];
    if (wanted[r] && slot.role == PairRole::kInputGradient) {
      gradients.inputs[slot.index] = std::move(results[r]).toTensor();
    }
  }
  return gradients;
}

void PairReplica::BindParameter(size_t index, const at::Tensor& storage) {
  parameters_[index].value.set_data(storage);
}

void PairReplica::BindEntry(size_t index, const at::Tensor& storage) {
  const size_t entry = EntriesOf(*shape_.part, manifest())[index];
  state_[manifest().state[entry].tensor].set_data(storage);
}

std::vector<at::Tensor> PairReplica::buffers() const {
  Tensors tensors;
  tensors.reserve(buffers_.size());
  for (const size_t i : buffers_) {
    tensors.push_back(state_[i]);
  }
  return tensors;
}

void PairReplica::SetBuffers(const std::vector<at::Tensor>& values) {
  const c10::AutoGradMode no_grad(false);
  Tensors to;
  Tensors from;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    at::Tensor& buffer = state_[buffers_[b]];
    if (!buffer.is_same(values[b])) {
      // New memory: a pending backward pass may need the old values.
      buffer = at::empty_like(values[b], buffer.options());
      to.push_back(buffer);
      from.push_back(values[b]);
    }
  }
  CopyTensors(to, from);
}

std::vector<StateEntry> PairReplica::state() const {
  std::vector<StateEntry> entries;
  for (const size_t i : EntriesOf(*shape_.part, manifest())) {
    const PairEntry& entry = manifest().state[i];
    entries.push_back({LocalName(entry), state_[entry.tensor].detach(), entry.is_parameter});
  }
  return entries;
}

absl::Status PairReplica::CheckStages(const std::vector<std::string>& paths) const {
  const auto& chains = manifest().chains;
  const bool whole = paths.size() == 1 && paths.front().empty();
  if (whole || std::find(chains.begin(), chains.end(), paths) != chains.end()) {
    return absl::OkStatus();
  }
  std::vector<std::string> known;
  for (const std::vector<std::string>& chain : chains) {
    known.push_back(absl::StrCat("[", absl::StrJoin(chain, ", "), "]"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the model was exported with ",
                   known.empty() ? std::string("no stages")
                                 : absl::StrCat("stages ", absl::StrJoin(known, ", ")),
                   ", not [", absl::StrJoin(paths, ", "), "] (export it with these stages)"));
}

absl::Status PairReplica::CheckEvalModules(const std::vector<std::string>& modules) const {
  if (modules.empty() || modules == manifest().eval_modules) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the model was exported ",
      manifest().eval_modules.empty()
          ? "without eval_modules"
          : absl::StrCat("with eval_modules ", AbbreviateNames(manifest().eval_modules)),
      ", but the trainer asks for ", AbbreviateNames(modules),
      " (pass the same eval_modules to braid.export)"));
}

absl::StatusOr<std::unique_ptr<Replica>> PairReplica::CloneStage(const StageRole& role,
                                                                 c10::Device device) const {
  const std::vector<PairStage>& parts = manifest().stages;
  const auto part = std::find_if(parts.begin(), parts.end(), [&](const PairStage& known) {
    return known.path == role.path && known.eval_modules == !role.eval_modules.empty();
  });
  if (part == parts.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the model was exported without a stage '",
                                                   Excerpt(role.path),
                                                   "' (pass the stages to braid.export)"));
  }
  const c10::AutoGradMode no_grad(false);
  Tensors state(state_.size());
  for (const size_t i : EntriesOf(*part, manifest())) {
    const PairEntry& entry = manifest().state[i];
    const at::Tensor value = state_[entry.tensor].detach();
    if (!state[entry.tensor].defined()) {
      state[entry.tensor] = value.to(device, /*non_blocking=*/false, /*copy=*/!entry.is_parameter);
    }
  }
  std::unique_ptr<PairReplica> copy(new PairReplica(
      {shape_.package, shape_.config, shape_.binding, &*part, role}, std::move(state), device));
  for (size_t i = 0; i < state_.size(); ++i) {
    if (copy->parameter_of_[i] && !state_[i].requires_grad()) {
      copy->Freeze(*copy->parameter_of_[i]);
    }
  }
  return copy;
}

std::vector<NewFile> PairReplica::Files() const {
  std::vector<HostTensor> weights;
  for (const size_t i : EntriesOf(*shape_.part, manifest())) {
    if (manifest().state[i].tensor == i) {
      weights.push_back(ToHost(state_[i].detach(), manifest().state[i].name));
    }
  }
  return {{kPackageFile,
           [package = shape_.package](ByteSink* sink) { return package->file().WriteTo(sink); }},
          {kWeightsFile, [weights = std::move(weights)](ByteSink* sink) {
             return WriteSafetensors(sink, weights);
           }}};
}

}  // namespace braid
