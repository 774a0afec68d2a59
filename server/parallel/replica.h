// One copy of a model's parameters and buffers on one device. The interface says nothing of how a
// model is run: TorchScript is one way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Used by its worker's thread alone. Methods may throw what LibTorch throws: RunOnEach() catches.
class Replica {
 public:
  virtual ~Replica() = default;

  // One forward pass over a chunk: `inputs` in the order of the model's inputs, on the replica's
  // device; returns the outputs in the order of the model's outputs, detached. INVALID_ARGUMENT if
  // the model returns something else than its configuration says.
  virtual absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                          Mode mode) = 0;

  // The same, and keeps what Backward() needs, until Backward() or DropGraph().
  virtual absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(
      const std::vector<at::Tensor>& inputs, Mode mode) = 0;
  // The gradients of parameters(), from those of the outputs (undefined: zero). One that the
  // outputs do not depend on is undefined.
  virtual absl::StatusOr<std::vector<at::Tensor>> Backward(
      const std::vector<at::Tensor>& output_gradients) = 0;
  virtual void DropGraph() = 0;

  // The trainable parameters, in the module's order.
  virtual const std::vector<Parameter>& parameters() const = 0;
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

  // A copy of its own, on the same device, for inference.
  virtual std::unique_ptr<Replica> Clone() const = 0;
};

}  // namespace braid
