// A Replica that runs a TorchScript module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/models/model_config.h"
#include "server/parallel/replica.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

class TorchScriptReplica final : public Replica {
 public:
  // `input_order`: for each argument of forward the index of its input. `outputs` outlives the
  // replica's owner's configuration: it is copied.
  TorchScriptReplica(torch::jit::Module module, std::vector<size_t> input_order,
                     std::vector<TensorSpec> outputs);

  absl::StatusOr<std::vector<at::Tensor>> Forward(const std::vector<at::Tensor>& inputs,
                                                  Mode mode) override;
  absl::StatusOr<std::vector<at::Tensor>> ForwardForTraining(const std::vector<at::Tensor>& inputs,
                                                             Mode mode) override;
  absl::StatusOr<std::vector<at::Tensor>> Backward(
      const std::vector<at::Tensor>& output_gradients) override;
  void DropGraph() override { graph_outputs_.clear(); }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void BindParameter(size_t index, const at::Tensor& storage) override;
  std::vector<at::Tensor> buffers() const override;
  void SetBuffers(const std::vector<at::Tensor>& values) override;
  std::vector<StateEntry> state() const override;
  std::unique_ptr<Replica> Clone() const override;

 private:
  // A buffer's place in its module: a forward pass may put another tensor there.
  struct BufferSlot {
    c10::intrusive_ptr<c10::ivalue::Object> owner;
    size_t slot;
    // What was there at first, and is whenever no forward pass has just run.
    at::Tensor own;
  };

  absl::StatusOr<std::vector<at::Tensor>> Call(const std::vector<at::Tensor>& inputs, Mode mode);
  void SetMode(Mode mode);
  // Puts the replica's own buffers back where a forward pass has put others.
  void ReclaimBuffers();

  torch::jit::Module module_;
  torch::jit::Method forward_;
  const std::vector<size_t> input_order_;
  const std::vector<TensorSpec> outputs_;
  Mode mode_;
  std::vector<Parameter> parameters_;
  std::vector<BufferSlot> buffers_;
  // The outputs of the last ForwardForTraining(), with their graph.
  std::vector<at::Tensor> graph_outputs_;
};

}  // namespace braid
