// One copy of a model's parameters and buffers on one device. The interface says nothing of how a
// model is run: TorchScript is one way.
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

// A trainable tensor; where two names share one tensor (tied weights) it is listed once.
struct Parameter {
  std::string name;
  at::Tensor value;
};

// An entry of a module's state_dict, by its name; tied tensors under each of theirs.
struct StateEntry {
  std::string name;
  at::Tensor value;
  bool is_parameter = false;
};

// What a backward pass gives. A gradient of something that the outputs do not depend on is
// undefined.
struct Gradients {
  std::vector<at::Tensor> parameters;  // in the order of Replica::parameters(); of frozen ones none
  std::vector<at::Tensor> inputs;      // of those that required one
};

// A part of a model as a replica of its own.
struct StageRole {
  std::string path;   // of the submodule; empty: the whole model
  bool first = true;  // takes the model's inputs; else what the stage before returned, in order
  bool last = true;   // returns the model's outputs; else whatever its forward returns, in order
  // Batch norm is synchronized, so a chunk of one row is enough.
  bool sync_batch_norm = false;
};

// Made by any thread that has entered its device; from then on used by its worker's thread alone.
// Methods may throw what LibTorch throws: RunOnEach() catches.
class Replica {
 public:
  virtual ~Replica() = default;

  // One forward pass over a chunk: `inputs` in the order of the model's inputs, on the replica's
  // device; returns the outputs in the order of the model's outputs, detached. INVALID_ARGUMENT if
  // the model returns something else than its configuration says.
  virtual absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                          Mode mode) = 0;

  // FAILED_PRECONDITION, saying why, if it cannot be trained under autocast to `autocast`, or in
  // its own precision: nothing below is of use then. Any thread.
  virtual absl::Status CheckTrainable(std::optional<c10::ScalarType> /*autocast*/) const {
    return absl::OkStatus();
  }
  // A trainable parameter, as messages call it ("'table.weight'"), whose gradient over a batch is
  // not the sum of the gradients over the batch's chunks: that of an embedding with
  // scale_grad_by_freq. nullopt if there is none.
  virtual std::optional<std::string> NonAdditiveParameter() const { return std::nullopt; }
  // As Forward(), and keeps what Backward() needs, until Backward() or DropGraph(). Inputs that
  // require a gradient get one there.
  virtual absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(
      const std::vector<at::Tensor>& inputs, Mode mode) = 0;
  // From the gradients of the outputs; undefined: zero. `on_gradient`, if there is one, is given
  // the gradient of each parameter that the outputs depend on as soon as it is whole.
  using OnGradient = std::function<void(size_t parameter, const at::Tensor& gradient)>;
  virtual absl::StatusOr<Gradients> Backward(const std::vector<at::Tensor>& output_gradients,
                                             const OnGradient& on_gradient) = 0;
  virtual void DropGraph() = 0;

  // The trainable parameters, in the module's order.
  virtual const std::vector<Parameter>& parameters() const = 0;
  // Parameter `index` gets no gradient any more.
  virtual void Freeze(size_t index) = 0;
  // Makes `storage`, of the parameter's shape and values, the place where parameter `index` lives.
  virtual void BindParameter(size_t index, const at::Tensor& storage) = 0;

  // The buffers as they are now: a forward pass may have put another tensor, even the input, in the
  // place of one.
  virtual std::vector<at::Tensor> buffers() const = 0;
  // Gives the buffers `values`, each of the shape that it had at first, in memory of the replica's
  // own.
  virtual void SetBuffers(const std::vector<at::Tensor>& values) = 0;
  // Parameters, frozen ones too, and buffers, in the order of the module's state_dict.
  virtual std::vector<StateEntry> state() const = 0;

  // A copy of its own, on the same device.
  virtual std::unique_ptr<Replica> Clone() const = 0;
  // Whether the model is its submodules at `paths`, one after the other; "": all of it.
  // INVALID_ARGUMENT, without a field, if it does anything else.
  virtual absl::Status CheckStages(const std::vector<std::string>& paths) const = 0;
  // A copy of a part of it, on `device`. INVALID_ARGUMENT, without a field, if there is no such
  // submodule or if it cannot take or give what its role asks for.
  virtual absl::StatusOr<std::unique_ptr<Replica>> CloneStage(const StageRole& role,
                                                              c10::Device device) const = 0;
  // The files of its format with the weights that it has while they are written: the model's own,
  // which is read by its name, and others that lie beside it.
  virtual std::vector<NewFile> Files() const = 0;
};

}  // namespace braid
