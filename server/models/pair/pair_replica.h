// Replica that runs an exported pair. Forward and backward pass are two graphs, so it uses neither
// the TorchScript interpreter nor the autograd engine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/models/model_config.h"
#include "server/models/pair/pair_binding.h"
#include "server/models/pair/pair_package.h"
#include "server/parallel/replica.h"

namespace braid {

// Thread-compatible: see Replica.
class PairReplica final : public Replica {
 public:
  // Creates a replica of the whole model with the package's weights. binding: result of BindPair()
  // for `config`. FAILED_PRECONDITION if the package is for another type of device, or if its
  // weights cannot be loaded.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(std::shared_ptr<const PairPackage> package,
                                                         std::shared_ptr<const ModelConfig> config,
                                                         PairBinding binding, c10::Device device);

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;
  absl::Status CheckTrainable(std::optional<c10::ScalarType> autocast) const override;
  std::optional<std::string> DescribeNonAdditiveParameter() const override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>& inputs,
                                                             Mode mode) override;
  absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>& output_gradients,
                                     const OnGradient& on_gradient) override;
  void DropGraph() override { pass_.reset(); }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Freeze(size_t index) override { parameters_[index].value.set_requires_grad(false); }
  void BindParameter(size_t index, const at::Tensor& storage) override;
  void BindEntry(size_t index, const at::Tensor& storage) override;
  std::vector<at::Tensor> buffers() const override;
  void SetBuffers(const std::vector<at::Tensor>& values) override;
  std::vector<StateEntry> state() const override;
  std::vector<std::string> modules() const override { return manifest().modules; }
  absl::Status CheckEvalModules(const std::vector<std::string>& modules) const override;
  absl::Status CheckStages(const std::vector<std::string>& paths) const override;
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole& role,
                                                      c10::Device device) const override;
  std::vector<NewFile> Files() const override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // Everything but the values of tensors.
  struct Shape {
    std::shared_ptr<const PairPackage> package;
    std::shared_ptr<const ModelConfig> config;
    PairBinding binding;
    const PairStage* part = nullptr;
    StageRole role;
  };
  // Executors of one program's graphs, created when they first run.
  struct Graphs {
    std::unique_ptr<Executor> eval;
    std::unique_ptr<Executor> forward;
    std::unique_ptr<Executor> backward;
    std::vector<bool> backward_outputs;  // outputs that `backward` computes
  };
  // Tensors of a forward pass that its backward pass may need. Inputs and outputs have the
  // package's order.
  struct ForwardPass {
    size_t program = 0;
    std::vector<bool> requires_grad;  // of the arguments of ForwardForTraining()
    Tensors inputs;
    Tensors state_before;
    Tensors state_after;
    Tensors outputs;
    Tensors saved;
  };

  // state: tensors on `device`, by index in the manifest; undefined for entries of other parts and
  // for additional names of tied tensors.
  PairReplica(Shape shape, Tensors state, c10::Device device);

  const PairManifest& manifest() const { return shape_.package->manifest(); }
  // Returns the indices of the manifest's entries that belong to `part`.
  static std::vector<size_t> EntriesOf(const PairStage& part, const PairManifest& manifest);
  std::string LocalName(const PairEntry& entry) const;
  // Returns the program for the calling thread's autocast type.
  absl::StatusOr<size_t> CurrentProgram() const;
  Executor& ExecutorOf(const PairGraph& graph, std::unique_ptr<Executor>* made) const;
  // Returns an executor of the backward graph that computes only the `wanted` outputs.
  Executor& BackwardExecutor(size_t program, const std::vector<bool>& wanted);
  Tensors FromConfig(const Tensors& inputs) const;
  Tensors ToConfig(const Tensors& outputs) const;
  // Runs the forward graph in training mode and updates the buffers.
  absl::StatusOr<ForwardPass> RunForward(const Tensors& inputs);
  // Returns the gradients of the package's outputs from those of the configuration's.
  Tensors OutputGradients(const ForwardPass& pass, const Tensors& gradients) const;
  // Returns the argument of the backward graph for `slot`.
  at::Tensor BackwardArgument(const PairSlot& slot, const ForwardPass& pass,
                              const Tensors& output_gradients) const;
  // Returns the outputs of the backward graph that are requested and depend on a defined gradient.
  std::vector<bool> WantedGradients(const ForwardPass& pass, const Tensors& output_gradients) const;

  const Shape shape_;
  const c10::Device device_;
  // Keeps the package's tensors, shared between replicas on the CPU, alive. nullptr: not shared.
  std::shared_ptr<const Tensors> weights_;
  Tensors state_;
  std::vector<Parameter> parameters_;
  std::vector<std::optional<size_t>> parameter_of_;  // by index in the state
  std::vector<size_t> buffers_;                      // indices in the state
  std::vector<Graphs> graphs_;                       // by program
  std::optional<ForwardPass> pass_;
};

}  // namespace braid
