// A model in training, replicated over the devices: the data-parallel step.
//
//   split → forward on all replicas → gather → loss → scatter its gradient → backward on all
//   replicas → sum the gradients into the primary's → update there → broadcast
//
// Called by one thread, the trainer's; the tensors are touched on the workers alone. What fails
// before the update leaves parameters, buffers and accumulated gradients as they were.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/devices/communicator.h"
#include "server/models/model_config.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/replica_set.h"
#include "server/training/loss.h"
#include "server/training/operation.h"
#include "server/training/optimizer.h"

namespace braid {

// How a batch was split: rows of each chunk, on the replicas in order.
using Split = std::vector<int64_t>;

struct BatchResult {
  Split split;
  std::optional<double> loss;
  // In the order of the model's outputs; only of Forward().
  std::vector<HostTensor> outputs;
};

// Thread-compatible.
class DataParallel {
 public:
  // Takes replicas of one model with the same weights, one a worker, and flattens their parameters.
  // FAILED_PRECONDITION if the model is not batched or has no trainable parameter.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const ModelConfig& config, Loss loss, std::vector<Worker*> workers,
      std::vector<std::unique_ptr<Replica>> replicas);

  // `inputs` as CheckInputs() gave them. Adds the batch's gradients to the accumulated ones.
  absl::StatusOr<BatchResult> ForwardBackward(const std::vector<HostTensor>& inputs,
                                              const std::vector<HostTensor>& targets);
  // Forward alone, and the loss where there are targets. In training mode it updates the buffers.
  absl::StatusOr<BatchResult> Forward(const std::vector<HostTensor>& inputs,
                                      const std::vector<HostTensor>& targets, Mode mode);
  // One update from the accumulated gradients, which it clears. An error leaves the replicas torn.
  absl::Status Update(const OptimizerSpec& optimizer);

  // Batches accumulated since the last update.
  int64_t accumulated() const { return accumulated_; }

  // The primary's parameters and buffers.
  absl::StatusOr<std::vector<StateTensor>> State();
  // Copies for inference, one a worker, with the primary's buffers.
  absl::StatusOr<std::vector<std::unique_ptr<Replica>>> Clone();

 private:
  DataParallel(Loss loss, std::vector<std::string> output_names, ReplicaSet replicas)
      : loss_(std::move(loss)),
        output_names_(std::move(output_names)),
        replicas_(std::move(replicas)) {}

  using ChunkOutputs = std::vector<std::vector<at::Tensor>>;

  absl::Status Init();
  // split → forward; what `keep_graph` keeps, Backward() or DropGraphs() takes.
  absl::StatusOr<ChunkOutputs> ForwardChunks(const std::vector<HostTensor>& inputs,
                                             const Split& split, Mode mode, bool keep_graph);
  // scatter → backward → flat gradients.
  absl::Status BackwardChunks(const at::Tensor& output_gradient, const ChunkOutputs& outputs,
                              const Split& split);
  absl::StatusOr<LossValue> GatherAndLoss(const ChunkOutputs& outputs, const Split& split,
                                          const HostTensor& target);
  // Makes the buffers that the primary has now the ones that count; or goes back to those that did.
  absl::Status CommitBuffers();
  void RollBack();
  std::vector<bool> Reached() const;

  // Immutable after Init().
  const Loss loss_;
  const std::vector<std::string> output_names_;
  const ReplicaSet replicas_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<FlatParameters> flat_;  // one a replica
  std::unique_ptr<Optimizer> optimizer_;

  // Touched only on the workers.
  // The buffers after the last operation that was applied, on the primary device: what each forward
  // starts from, on every replica.
  std::vector<at::Tensor> buffers_;

  // Touched only by the trainer's thread.
  int64_t accumulated_ = 0;
  size_t ranks_ = 0;  // replicas that hold accumulated gradients
};

}  // namespace braid
