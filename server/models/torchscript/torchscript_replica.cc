#include "server/models/torchscript/torchscript_replica.h"

#include <exception>
#include <set>
#include <sstream>
#include <utility>

#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/models/torchscript/batch_size_check.h"
#include "server/models/torchscript/embeddings.h"
#include "server/models/torchscript/flatten_outputs.h"
#include "server/models/torchscript/module_state.h"
#include "server/models/torchscript/stage_chain.h"
#include "server/parallel/copy_tensors.h"
#include "server/storage/model_files.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/jit/serialization/export.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

using torch::jit::Module;

// Appends the entries of a module and then of its children, in the order of a state_dict.
void CollectState(const Module& module, const std::string& prefix,
                  std::vector<StateEntry>* entries) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    entries->push_back({prefix + parameter.name, parameter.value, true});
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    entries->push_back({prefix + buffer.name, buffer.value, false});
  }
  for (const auto& child : module.named_children()) {
    CollectState(child.value, prefix + child.name + ".", entries);
  }
}

std::vector<Parameter> DistinctTrainable(const Module& module) {
  std::vector<StateEntry> entries;
  CollectState(module, "", &entries);
  std::vector<Parameter> distinct;
  std::set<const void*> seen;
  for (const StateEntry& entry : entries) {
    if (entry.is_parameter && entry.value.requires_grad() &&
        seen.insert(entry.value.unsafeGetTensorImpl()).second) {
      distinct.push_back({entry.name, entry.value});
    }
  }
  return distinct;
}

// Finds the submodule at `path`, for example "layers.0". The empty path is the module itself.
absl::StatusOr<Module> Submodule(const Module& module, const std::string& path) {
  if (path.empty()) {
    return module;
  }
  Module found = module;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    std::vector<std::string> names;
    std::optional<Module> next;
    for (const auto& child : found.named_children()) {
      names.push_back(absl::StrCat("'", child.name, "'"));
      if (child.name == name) {
        next = child.value;
      }
    }
    if (!next) {
      return absl::InvalidArgumentError(
          absl::StrCat("submodule '", Excerpt(path), "' does not exist: no '", name,
                       "' (expected one of ", absl::StrJoin(names, ", "), ")"));
    }
    found = *next;
  }
  if (!found.find_method("forward")) {
    return absl::InvalidArgumentError(absl::StrCat("submodule '", path, "' has no forward method"));
  }
  return found;
}

// Returns the paths of `modules` that are in the submodule at `path`, relative to it.
std::set<std::string> LocalPaths(const std::string& path, const std::vector<std::string>& modules) {
  std::set<std::string> local;
  for (absl::string_view module : modules) {
    if (path.empty() || module == path) {
      local.emplace(path.empty() ? module : "");
    } else if (absl::ConsumePrefix(&module, path) && absl::ConsumePrefix(&module, ".")) {
      local.emplace(module);
    }
  }
  return local;
}

// Writes the module in its current mode.
absl::Status Export(const Module& module, ByteSink* sink) {
  absl::Status status;
  // Reports success even after an error: on a short write the exporter's destructor would throw,
  // which ends the process.
  const auto writer = [&](const void* data, size_t bytes) -> size_t {
    if (status.ok()) {
      status = sink->Write(absl::string_view(static_cast<const char*>(data), bytes));
    }
    return bytes;
  };
  try {
    torch::jit::ExportModule(module, writer);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
  return status;
}

// Copies requires_grad of all parameters.
void CopyRequiresGrad(const Module& from, const Module& to) {
  auto original = from.parameters().begin();
  for (at::Tensor parameter : to.parameters()) {
    parameter.set_requires_grad((*original).requires_grad());
    ++original;
  }
}

// Copies a module to `device`. Parameters are leaves with the same requires_grad, and share the
// memory of those that are on `device` already.
Module CopyTo(const Module& module, c10::Device device) {
  // Otherwise the copies would not be leaves.
  const c10::AutoGradMode no_grad(false);
  c10::IValue::HashIdentityIValueMap copies;
  bool on_device = true;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.device() == device) {
      // With a version counter of its own: an update of the copy must not look to autograd like one
      // of the original.
      copies.emplace(parameter, parameter.variable_data());
    } else {
      on_device = false;
    }
  }
  // Given a device, LibTorch's deepcopy shares all tensors that are already on it.
  Module copy(module._ivalue()->deepcopy(
      copies, on_device ? std::nullopt : std::optional<c10::Device>(device)));
  CopyRequiresGrad(module, copy);
  return copy;
}

// Calls `on_gradient`, if set, with each parameter's gradient during backward passes in its scope.
class GradientHooks {
 public:
  GradientHooks(const std::vector<Parameter>& parameters, const Replica::OnGradient& on_gradient) {
    for (size_t p = 0; on_gradient && p < parameters.size(); ++p) {
      const at::Tensor& value = parameters[p].value;
      if (value.requires_grad()) {
        hooks_.emplace_back(value,
                            value.register_hook([&on_gradient, p](const at::Tensor& gradient) {
                              if (gradient.defined()) {
                                on_gradient(p, gradient);
                              }
                            }));
      }
    }
  }
  ~GradientHooks() {
    for (const auto& [value, hook] : hooks_) {
      value.remove_hook(hook);
    }
  }
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

std::vector<at::Tensor> Copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone());
  }
  return copies;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> TorchScriptReplica::Create(
    Module module, std::optional<std::vector<TensorSpec>> inputs,
    std::optional<std::vector<TensorSpec>> outputs, bool stateful,
    std::set<std::string> eval_modules) {
  std::optional<std::vector<ArgumentPlan>> arguments;
  if (inputs) {
    const auto& schema = module.get_method("forward").function().getSchema();
    BRAID_ASSIGN_OR_RETURN(arguments, PlanArguments(*inputs, schema));
  }
  return std::unique_ptr<Replica>(new TorchScriptReplica(std::move(module), std::move(inputs),
                                                         std::move(arguments), std::move(outputs),
                                                         stateful, std::move(eval_modules)));
}

TorchScriptReplica::TorchScriptReplica(Module module, std::optional<std::vector<TensorSpec>> inputs,
                                       std::optional<std::vector<ArgumentPlan>> arguments,
                                       std::optional<std::vector<TensorSpec>> outputs,
                                       bool stateful, std::set<std::string> eval_modules)
    : module_(std::move(module)),
      forward_(module_.get_method("forward")),
      inputs_(std::move(inputs)),
      arguments_(std::move(arguments)),
      outputs_(std::move(outputs)),
      stateful_(stateful),
      eval_modules_(std::move(eval_modules)),
      mode_(Mode::kEval),
      parameters_(DistinctTrainable(module_)) {
  module_.eval();
  for (const Module& owner : module_.modules()) {
    for (const auto& buffer : owner.named_buffers(/*recurse=*/false)) {
      buffers_.push_back(
          {owner._ivalue(), owner.type()->getAttributeSlot(buffer.name), buffer.value});
    }
  }
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::Forward(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  const c10::AutoGradMode no_grad(false);
  if (!stateful_ || mode == Mode::kTrain) {
    return Call(inputs, mode);
  }
  // The inputs' memory belongs to the request, and the next call may change these outputs.
  auto outputs = Call(Copies(inputs), mode);
  ReclaimBuffers();
  return outputs.ok() ? Copies(*outputs) : std::move(outputs);
}

absl::Status TorchScriptReplica::CheckTrainable(std::optional<c10::ScalarType> /*autocast*/) const {
  return CatchTorch([&] { return CheckOnlyBuffersChange(module_); });
}

std::optional<std::string> TorchScriptReplica::DescribeNonAdditiveParameter() const {
  for (const at::Tensor& weight : FrequencyScaledWeights(module_)) {
    if (!weight.defined()) {
      return "an embedding whose weight forward() computes";
    }
    for (const Parameter& parameter : parameters_) {
      if (parameter.value.is_same(weight) && parameter.value.requires_grad()) {
        return absl::StrCat("'", parameter.name, "'");
      }
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::ForwardForTraining(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  const c10::AutoGradMode grad(true);
  std::vector<at::Tensor> passed;
  for (const at::Tensor& input : inputs) {
    // The module may modify its input in place. That is an error for a leaf, and another stage may
    // need the values.
    passed.push_back(input.requires_grad() ? input.clone() : input);
  }
  BRAID_ASSIGN_OR_RETURN(graph_outputs_, Call(passed, mode));
  graph_inputs_ = inputs;
  std::vector<at::Tensor> detached;
  for (const at::Tensor& output : graph_outputs_) {
    detached.push_back(output.detach());
  }
  return detached;
}

absl::StatusOr<Gradients> TorchScriptReplica::Backward(
    const std::vector<at::Tensor>& output_gradients, const OnGradient& on_gradient) {
  const std::vector<at::Tensor> outputs = std::exchange(graph_outputs_, {});
  const std::vector<at::Tensor> inputs = std::exchange(graph_inputs_, {});
  Gradients gradients{std::vector<at::Tensor>(parameters_.size()),
                      std::vector<at::Tensor>(inputs.size())};
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> root_gradients;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (output_gradients[o].defined() && outputs[o].requires_grad()) {
      roots.push_back(outputs[o]);
      root_gradients.push_back(output_gradients[o]);
    }
  }
  std::vector<at::Tensor> leaves;
  std::vector<at::Tensor*> places;
  const auto request = [&](const at::Tensor& leaf, at::Tensor* place) {
    if (leaf.requires_grad()) {
      leaves.push_back(leaf);
      places.push_back(place);
    }
  };
  for (size_t p = 0; p < parameters_.size(); ++p) {
    request(parameters_[p].value, &gradients.parameters[p]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    request(inputs[i], &gradients.inputs[i]);
  }
  if (roots.empty() || leaves.empty()) {
    return gradients;
  }
  const GradientHooks hooks(parameters_, on_gradient);
  const std::vector<at::Tensor> found = torch::autograd::grad(
      roots, leaves, root_gradients, /*retain_graph=*/false, /*create_graph=*/false,
      /*allow_unused=*/true);
  for (size_t l = 0; l < found.size(); ++l) {
    *places[l] = found[l];
  }
  return gradients;
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::Call(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  SetMode(mode);
  const c10::IValue result = forward_(Arguments(inputs));
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> leaves, Flatten(result));
  std::vector<at::Tensor> outputs;
  if (!outputs_) {
    for (const OutputLeaf& leaf : leaves) {
      if (!leaf.value.defined()) {
        return absl::FailedPreconditionError(
            "a stage returned None (expected tensors, or tuples, lists or dicts of tensors)");
      }
      outputs.push_back(leaf.value);
    }
    return outputs;
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<size_t> bound, BindOutputs(*outputs_, leaves));
  for (size_t o = 0; o < bound.size(); ++o) {
    outputs.push_back(FromModel(leaves[bound[o]].value, (*outputs_)[o]));
  }
  return outputs;
}

std::vector<c10::IValue> TorchScriptReplica::Arguments(
    const std::vector<at::Tensor>& inputs) const {
  if (!arguments_) {
    return {inputs.begin(), inputs.end()};
  }
  std::vector<at::Tensor> shaped = inputs;
  for (size_t i = 0; i < shaped.size(); ++i) {
    shaped[i] = ToModel(shaped[i], (*inputs_)[i]);
  }
  std::vector<c10::IValue> arguments;
  for (const ArgumentPlan& plan : *arguments_) {
    arguments.push_back(MakeArgument(plan, shaped));
  }
  return arguments;
}

void TorchScriptReplica::SetMode(Mode mode) {
  if (mode != mode_) {
    module_.train(mode == Mode::kTrain);
    for (const auto& each : module_.named_modules()) {
      if (eval_modules_.contains(each.name)) {
        Module(each.value).eval();
      }
    }
    mode_ = mode;
  }
}

void TorchScriptReplica::BindParameter(size_t index, const at::Tensor& storage) {
  parameters_[index].value.set_data(storage);
}

void TorchScriptReplica::BindEntry(size_t index, const at::Tensor& storage) {
  std::vector<StateEntry> entries;
  CollectState(module_, "", &entries);
  entries[index].value.set_data(storage);
}

std::vector<at::Tensor> TorchScriptReplica::buffers() const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(buffers_.size());
  for (const BufferSlot& buffer : buffers_) {
    tensors.push_back(buffer.owner->getSlot(buffer.slot).toTensor());
  }
  return tensors;
}

void TorchScriptReplica::SetBuffers(const std::vector<at::Tensor>& values) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    BufferSlot& buffer = buffers_[b];
    if (!buffer.own.is_same(values[b])) {
      // A backward pass may still need the old values, so use new memory then.
      buffer.own = graph_outputs_.empty() ? buffer.own : at::empty_like(buffer.own);
      to.push_back(buffer.own);
      from.push_back(values[b]);
    }
    buffer.owner->setSlot(buffer.slot, buffer.own);
  }
  CopyTensors(to, from);
}

void TorchScriptReplica::ReclaimBuffers() {
  for (const BufferSlot& buffer : buffers_) {
    if (!buffer.owner->getSlot(buffer.slot).toTensor().is_same(buffer.own)) {
      buffer.owner->setSlot(buffer.slot, buffer.own);
    }
  }
}

std::vector<StateEntry> TorchScriptReplica::state() const {
  std::vector<StateEntry> entries;
  CollectState(module_, "", &entries);
  for (StateEntry& entry : entries) {
    entry.value = entry.value.detach();
  }
  return entries;
}

std::vector<std::string> TorchScriptReplica::modules() const {
  std::vector<std::string> paths;
  for (const auto& each : module_.named_modules()) {
    if (!each.name.empty()) {
      paths.push_back(each.name);
    }
  }
  return paths;
}

absl::Status TorchScriptReplica::CheckStages(const std::vector<std::string>& paths) const {
  return CheckChain(module_, paths);
}

absl::StatusOr<std::unique_ptr<Replica>> TorchScriptReplica::CloneStage(const StageRole& role,
                                                                        c10::Device device) const {
  BRAID_ASSIGN_OR_RETURN(Module part, Submodule(module_, role.path));
  if (role.sync_batch_norm) {
    // Copies share their code, and clones share the functions that it calls. A loaded module has
    // its own code, which RemoveBatchSizeChecks() may change.
    std::stringstream file;
    part.save(file);
    Module own = torch::jit::load(file, std::nullopt, /*load_debug_files=*/false);
    CopyRequiresGrad(part, own);
    RemoveBatchSizeChecks(own);
    part = own;
  }
  return Create(CopyTo(part, device), role.first ? inputs_ : std::nullopt,
                role.last ? outputs_ : std::nullopt, stateful_,
                LocalPaths(role.path, role.eval_modules));
}

std::vector<NewFile> TorchScriptReplica::Files() const {
  return {{kTorchScriptFile, [module = module_](ByteSink* sink) { return Export(module, sink); }}};
}

}  // namespace braid
