// Interface of a replica: one copy of a model's parameters and buffers on one device. Each model
// format implements it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/ScalarType.h"
#include "server/base/new_file.h"
#include "server/parallel/mode.h"

namespace braid {

// Trainable tensor. A tensor with several names (tied weights) is listed once.
struct Parameter {
  std::string name;
  at::Tensor value;
};

// Entry of a module's state_dict. Tied tensors have one entry for each name.
struct StateEntry {
  std::string name;
  at::Tensor value;
  bool is_parameter = false;
};

// Result of a backward pass. Gradients are undefined for tensors that the outputs do not depend on.
struct Gradients {
  std::vector<at::Tensor> parameters;  // as Replica::parameters(); undefined for frozen ones
  std::vector<at::Tensor> inputs;      // undefined unless the input requires a gradient
};

// Position of a pipeline stage in its model.
struct StageRole {
  std::string path;   // path of the submodule; empty: the whole model
  bool first = true;  // takes the model's inputs; otherwise the results of the previous stage
  bool last = true;   // returns the model's outputs; otherwise the results of its forward()
  // Batch norm is synchronized, so that chunks may have a single row.
  bool sync_batch_norm = false;
  // Submodules that run in evaluation mode in training, by their paths in the whole model, in
  // order. With a module, it contains all submodules of the module.
  std::vector<std::string> eval_modules;
};

// Not thread-safe: created on any thread that has entered its device, then used by its worker's
// thread only. Methods throw what LibTorch throws; RunOnEach() converts exceptions to a Status.
class Replica {
 public:
  virtual ~Replica() = default;

  // Runs a forward pass over a chunk. inputs: in the order of the model's inputs, on the replica's
  // device. Returns detached outputs in the order of the model's outputs. INVALID_ARGUMENT if the
  // results do not match the model's configuration.
  virtual absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                          Mode mode) = 0;

  // FAILED_PRECONDITION with a reason if the replica cannot be trained with `autocast` (nullopt: in
  // its own precision). Then the methods below must not be used. May be called on any thread.
  virtual absl::Status CheckTrainable(std::optional<c10::ScalarType> /*autocast*/) const {
    return absl::OkStatus();
  }
  // Returns a trainable parameter whose gradient over a batch is not the sum of the gradients over
  // its chunks, as a description for messages ("'table.weight'"). The weight of an embedding with
  // scale_grad_by_freq is one. nullopt if there is none.
  virtual std::optional<std::string> DescribeNonAdditiveParameter() const { return std::nullopt; }
  // Runs Forward() and keeps the tensors for Backward() until Backward() or DropGraph(). Backward()
  // returns gradients of the inputs that require one.
  virtual absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(
      const std::vector<at::Tensor>& inputs, Mode mode) = 0;
  // Runs a backward pass. output_gradients: undefined means zero. on_gradient: if set, called with
  // the gradient of each parameter that the outputs depend on, as soon as it is complete.
  using OnGradient = std::function<void(size_t parameter, const at::Tensor& gradient)>;
  virtual absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>& output_gradients,
                                             const OnGradient& on_gradient) = 0;
  // Frees the tensors that ForwardForTraining() kept.
  virtual void DropGraph() = 0;

  // Returns the trainable parameters, in the module's order.
  virtual const std::vector<Parameter>& parameters() const = 0;
  // Excludes parameter `index` from gradients.
  virtual void Freeze(size_t index) = 0;
  // Moves parameter `index` to `storage`, which has the parameter's shape.
  virtual void BindParameter(size_t index, const at::Tensor& storage) = 0;
  // Same, for entry `index` of state(), which is a parameter, trainable or not.
  virtual void BindEntry(size_t index, const at::Tensor& storage) = 0;

  // Returns the current buffers. A forward pass may have replaced a buffer's tensor, even by an
  // input.
  virtual std::vector<at::Tensor> buffers() const = 0;
  // Copies `values` to the buffers, in memory of the replica. The shapes are the original ones.
  virtual void SetBuffers(const std::vector<at::Tensor>& values) = 0;
  // Returns parameters, including frozen ones, and buffers in the order of the module's state_dict.
  virtual std::vector<StateEntry> state() const = 0;

  // Returns the paths of the submodules, without the module itself.
  virtual std::vector<std::string> modules() const { return {}; }
  // INVALID_ARGUMENT, without a field, unless CloneStage() accepts these StageRole::eval_modules.
  virtual absl::Status CheckEvalModules(const std::vector<std::string>& /*modules*/) const {
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT, without a field, unless the model is the sequential composition of its
  // submodules at `paths`. The path "" is the whole model.
  virtual absl::Status CheckStages(const std::vector<std::string>& paths) const = 0;
  // Returns a copy of the stage `role` on `device`. Its parameters share this replica's memory if
  // that is on `device`, so bind them to other memory before they change. Buffers are copied.
  // INVALID_ARGUMENT, without a field, if the submodule does not exist or does not fit its
  // position. Thread-safe on a replica that does not run.
  virtual absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole& role,
                                                              c10::Device device) const = 0;
  // Returns the files of the model in its format, the model's file first. Each file is written with
  // the weights at the time of writing.
  virtual std::vector<NewFile> Files() const = 0;
};

}  // namespace braid
