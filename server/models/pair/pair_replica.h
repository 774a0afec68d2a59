// A Replica that runs an exported pair: forward and backward are two graphs, so there is neither a
// TorchScript interpreter nor an autograd engine in it.
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

class PairReplica final : public Replica {
 public:
  // The whole model with the package's weights, ready to be run. `config` has been through
  // BindPair(), which gave `binding`. FAILED_PRECONDITION if the package is for another kind of
  // device, or its weights or graphs cannot be loaded.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(std::shared_ptr<const PairPackage> package,
                                                         std::shared_ptr<const ModelConfig> config,
                                                         PairBinding binding, c10::Device device);

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;
  absl::Status CheckTrainable(std::optional<c10::ScalarType> autocast) const override;
  std::optional<std::string> NonAdditiveParameter() const override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>& inputs,
                                                             Mode mode) override;
  absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>& output_gradients,
                                     const OnGradient& on_gradient) override;
  void DropGraph() override { kept_.reset(); }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Freeze(size_t index) override { parameters_[index].value.set_requires_grad(false); }
  void BindParameter(size_t index, const at::Tensor& storage) override;
  std::vector<at::Tensor> buffers() const override;
  void SetBuffers(const std::vector<at::Tensor>& values) override;
  std::vector<StateEntry> state() const override;
  std::unique_ptr<Replica> Clone() const override;
  absl::Status CheckStages(const std::vector<std::string>& paths) const override;
  absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole& role,
                                                      c10::Device device) const override;
  std::vector<NewFile> Files() const override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // What the replica is, whatever its tensors hold.
  struct Shape {
    std::shared_ptr<const PairPackage> package;
    std::shared_ptr<const ModelConfig> config;
    PairBinding binding;
    const PairPart* part = nullptr;
    StageRole role;
  };
  // Executors of one program's graphs, made at their first run.
  struct Graphs {
    std::unique_ptr<Executor> eval;
    std::unique_ptr<Executor> forward;
    std::unique_ptr<Executor> backward;
    std::vector<bool> backward_outputs;  // those that `backward` computes
  };
  // Of a forward pass, for its backward pass.
  struct Kept {
    size_t program = 0;
    std::vector<bool> differentiated;  // the inputs, as ForwardForTraining() got them
    Tensors inputs;                    // as the package takes them
    Tensors before;                    // the state before the pass
    Tensors after;
    Tensors outputs;  // as the package gives them
    Tensors saved;
  };

  // `state`: on `device`, by the manifest's index; undefined for other parts' and for second names.
  PairReplica(Shape shape, Tensors state, c10::Device device);

  const PairManifest& manifest() const { return shape_.package->manifest(); }
  // The manifest's entries that are of this part, by index.
  static std::vector<size_t> EntriesOf(const PairPart& part, const PairManifest& manifest);
  std::string LocalName(const PairEntry& entry) const;
  // The program of the thread's autocast.
  absl::StatusOr<size_t> CurrentProgram() const;
  Executor& ExecutorOf(const PairGraph& graph, std::unique_ptr<Executor>* made) const;
  // Executor of the backward graph for the `wanted` outputs only.
  Executor& BackwardExecutor(size_t program, const std::vector<bool>& wanted);
  Tensors FromConfig(const Tensors& inputs) const;
  Tensors ToConfig(const Tensors& outputs) const;
  absl::StatusOr<Kept> Train(const Tensors& inputs);
  // The gradients of the package's outputs.
  Tensors OutputGradients(const Kept& kept, const Tensors& given) const;
  // What `slot` of the backward graph is; `given`: gradients of the package's outputs.
  at::Tensor BackwardArgument(const PairSlot& slot, const Kept& kept, const Tensors& given) const;
  // The outputs of the backward graph that somebody asks for and that depend on those in `given`.
  std::vector<bool> WantedGradients(const Kept& kept, const Tensors& given) const;
  std::unique_ptr<PairReplica> Copy(Shape shape, c10::Device device) const;

  const Shape shape_;
  const c10::Device device_;
  // While the replica has the package's own tensors others may have them too.
  std::shared_ptr<const Tensors> weights_;
  Tensors state_;
  std::vector<Parameter> parameters_;
  std::vector<std::optional<size_t>> parameter_of_;  // by the state's index
  std::vector<size_t> buffers_;                      // the state's indices
  std::vector<Graphs> graphs_;                       // by program
  std::optional<Kept> kept_;
};

}  // namespace braid
