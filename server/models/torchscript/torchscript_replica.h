// Replica that runs a TorchScript module.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/models/model_config.h"
#include "server/models/torchscript/argument_plan.h"
#include "server/parallel/replica.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Thread-compatible: see Replica.
class TorchScriptReplica final : public Replica {
 public:
  // inputs, outputs: tensors of the model's configuration. If nullopt, tensors are bound by
  // position. stateful: result of MayChangeStateInEval(): whether a forward pass in evaluation mode
  // may change the module or return tensors that a later pass changes. eval_modules: paths of
  // submodules that are in evaluation mode in training, too; "" is the module.
  // FAILED_PRECONDITION if `inputs` do not match forward().
  static absl::StatusOr<std::unique_ptr<Replica>> Create(
      torch::jit::Module module, std::optional<std::vector<TensorSpec>> inputs,
      std::optional<std::vector<TensorSpec>> outputs, bool stateful,
      std::set<std::string> eval_modules = {});

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;
  // FAILED_PRECONDITION if forward() changes state other than buffers.
  absl::Status CheckTrainable(std::optional<c10::ScalarType> autocast) const override;
  std::optional<std::string> DescribeNonAdditiveParameter() const override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>& inputs,
                                                             Mode mode) override;
  absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>& output_gradients,
                                     const OnGradient& on_gradient) override;
  void DropGraph() override {
    graph_outputs_.clear();
    graph_inputs_.clear();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Freeze(size_t index) override { parameters_[index].value.set_requires_grad(false); }
  void BindParameter(size_t index, const at::Tensor& storage) override;
  void BindEntry(size_t index, const at::Tensor& storage) override;
  std::vector<at::Tensor> buffers() const override;
  void SetBuffers(const std::vector<at::Tensor>& values) override;
  std::vector<StateEntry> state() const override;
  std::vector<std::string> modules() const override;
  absl::Status CheckStages(const std::vector<std::string>& paths) const override;
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole& role,
                                                      c10::Device device) const override;
  std::vector<NewFile> Files() const override;

 private:
  TorchScriptReplica(torch::jit::Module module, std::optional<std::vector<TensorSpec>> inputs,
                     std::optional<std::vector<ArgumentPlan>> arguments,
                     std::optional<std::vector<TensorSpec>> outputs, bool stateful,
                     std::set<std::string> eval_modules);

  // Attribute of a module that holds a buffer. A forward pass may assign another tensor to it.
  struct BufferSlot {
    c10::intrusive_ptr<c10::ivalue::Object> owner;
    size_t slot;
    // The replica's own tensor, which ReclaimBuffers() and SetBuffers() assign again.
    at::Tensor own;
  };

  absl::StatusOr<std::vector<at::Tensor>> Call(const std::vector<at::Tensor>& inputs, Mode mode);
  std::vector<c10::IValue> Arguments(const std::vector<at::Tensor>& inputs) const;
  void SetMode(Mode mode);
  // Assigns the replica's own tensors to buffers that a forward pass has replaced.
  void ReclaimBuffers();

  torch::jit::Module module_;
  torch::jit::Method forward_;
  const std::optional<std::vector<TensorSpec>> inputs_;
  const std::optional<std::vector<ArgumentPlan>> arguments_;  // built from inputs_
  const std::optional<std::vector<TensorSpec>> outputs_;
  const bool stateful_;
  const std::set<std::string> eval_modules_;
  Mode mode_;
  std::vector<Parameter> parameters_;
  std::vector<BufferSlot> buffers_;
  // Outputs, with their autograd graph, and inputs of the last ForwardForTraining().
  std::vector<at::Tensor> graph_outputs_;
  std::vector<at::Tensor> graph_inputs_;
};

}  // namespace braid
