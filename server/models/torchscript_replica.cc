#include "server/models/torchscript_replica.h"

#include <set>
#include <utility>

#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/torchscript_io.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using torch::jit::Module;

// A module's own entries first, then its children's: the order of a state_dict.
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

}  // namespace

TorchScriptReplica::TorchScriptReplica(Module module, std::vector<size_t> input_order,
                                       std::vector<TensorSpec> outputs)
    : module_(std::move(module)),
      forward_(module_.get_method("forward")),
      input_order_(std::move(input_order)),
      outputs_(std::move(outputs)),
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
  auto outputs = Call(inputs, mode);
  if (mode == Mode::kEval) {
    // What the module put there may be the input, whose memory is the request's.
    ReclaimBuffers();
  }
  return outputs;
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::ForwardForTraining(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  const c10::AutoGradMode grad(true);
  BRAID_ASSIGN_OR_RETURN(graph_outputs_, Call(inputs, mode));
  std::vector<at::Tensor> detached;
  for (const at::Tensor& output : graph_outputs_) {
    detached.push_back(output.detach());
  }
  return detached;
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::Backward(
    const std::vector<at::Tensor>& output_gradients) {
  const std::vector<at::Tensor> outputs = std::exchange(graph_outputs_, {});
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> root_gradients;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (output_gradients[o].defined() && outputs[o].requires_grad()) {
      roots.push_back(outputs[o]);
      root_gradients.push_back(output_gradients[o]);
    }
  }
  std::vector<at::Tensor> leaves;
  for (const Parameter& parameter : parameters_) {
    leaves.push_back(parameter.value);
  }
  if (roots.empty() || leaves.empty()) {
    return std::vector<at::Tensor>(leaves.size());
  }
  return torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

absl::StatusOr<std::vector<at::Tensor>> TorchScriptReplica::Call(
    const std::vector<at::Tensor>& inputs, Mode mode) {
  SetMode(mode);
  std::vector<c10::IValue> arguments;
  arguments.reserve(input_order_.size());
  for (const size_t input : input_order_) {
    arguments.emplace_back(inputs[input]);
  }
  const c10::IValue result = forward_(std::move(arguments));
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> leaves, Flatten(result));
  BRAID_ASSIGN_OR_RETURN(const std::vector<size_t> bound, BindOutputs(outputs_, leaves));
  std::vector<at::Tensor> outputs;
  outputs.reserve(bound.size());
  for (const size_t leaf : bound) {
    outputs.push_back(leaves[leaf].value);
  }
  return outputs;
}

void TorchScriptReplica::SetMode(Mode mode) {
  if (mode != mode_) {
    module_.train(mode == Mode::kTrain);
    mode_ = mode;
  }
}

void TorchScriptReplica::BindParameter(size_t index, const at::Tensor& storage) {
  parameters_[index].value.set_data(storage);
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
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const BufferSlot& buffer = buffers_[b];
    if (!buffer.own.is_same(values[b])) {
      buffer.own.copy_(values[b]);
    }
    buffer.owner->setSlot(buffer.slot, buffer.own);
  }
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

std::unique_ptr<Replica> TorchScriptReplica::Clone() const {
  const c10::AutoGradMode no_grad(false);  // else the copies would hang on the originals' graph
  Module copy = module_.deepcopy();
  auto original = module_.parameters().begin();
  for (at::Tensor parameter : copy.parameters()) {
    parameter.set_requires_grad((*original).requires_grad());
    ++original;
  }
  return std::make_unique<TorchScriptReplica>(std::move(copy), input_order_, outputs_);
}

}  // namespace braid
