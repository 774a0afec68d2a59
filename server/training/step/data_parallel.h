// A model in training, in stages that are replicated over the devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/models/model_config.h"
#include "server/training/loss/objective.h"
#include "server/training/optim/parameter_groups.h"
#include "server/training/optim/schedule.h"
#include "server/training/step/batch_pass.h"
#include "server/training/step/evaluation.h"
#include "server/training/step/grad_scaler.h"
#include "server/training/step/placement.h"
#include "server/training/step/rank_map.h"
#include "server/training/step/snapshot.h"
#include "server/training/step/stage.h"
#include "server/training/step/sync_choice.h"
#include "server/training/step/train_step.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Owned by a trainer. Thread-compatible: called by the thread that runs the operation, which
// waits for the workers; only the workers use the tensors. An operation that fails before the
// update leaves parameters, buffers, accumulated gradients and optimizer as they were.
class DataParallel {
 public:
  // Returns the groups of the trainable parameters of `placement`, in the order of its stages.
  // FAILED_PRECONDITION if the model is not batched, has no trainable parameter, or has a number
  // without a default as input; INVALID_ARGUMENT naming parameter_groups[i].
  static absl::StatusOr<ParameterGroups> GroupsOf(const ModelConfig& config,
                                                  const TrainerSpec& spec,
                                                  const Placement& placement);

  // `spec`: with the defaults filled in by Objective, ParameterGroups and Place(). Blocks.
  // FAILED_PRECONDITION if the model is not batched, has no trainable parameter, or has a gradient
  // that is not the sum of the chunks' gradients; INVALID_ARGUMENT naming the wrong field of
  // `spec`.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const ModelConfig& config, TrainerSpec spec, std::shared_ptr<const Objective> objective,
      Placement placement);
  ~DataParallel();

  // The operations. Results leave out what only the trainer knows: sequence, step, learning rate.
  // Runs forward, loss and backward, and adds the gradients to the accumulated ones. With `update`,
  // the values of each parameter group, updates the parameters from them.
  absl::StatusOr<OperationResult> RunTrainStep(const Batch& batch,
                                               const std::vector<GroupValues>* update);
  // Runs forward, and the loss if the batch has targets. In training mode it updates the buffers.
  // `keep_graph`: for Backward(), until the next call other than Evaluate().
  absl::StatusOr<OperationResult> Forward(const Batch& batch, bool keep_graph);
  // Runs backward from the gradients of the outputs, by name, and adds to the accumulated
  // gradients. FAILED_PRECONDITION if no graph is kept, INVALID_ARGUMENT naming
  // output_gradients[i].
  absl::StatusOr<OperationResult> Backward(const std::vector<HostTensor>& output_gradients);
  // Drops the kept graph, if there is one.
  void DropKept();
  // Updates the parameters from the accumulated gradients, and clears these. Skips the update if
  // all batches since the last one were skipped.
  absl::StatusOr<OperationResult> Update(const std::vector<GroupValues>& values);
  // Runs forward in eval mode and adds losses and metrics to `evaluation`. Changes nothing.
  absl::Status Evaluate(const Batch& batch, Evaluation* evaluation);

  // Batches accumulated since the last update.
  int64_t accumulated() const { return accumulated_; }
  // Batches skipped since the last update, because something was not finite.
  int64_t skipped_batches() const { return skipped_batches_; }
  bool keeps_graph() const { return kept_ != nullptr; }
  // An update or a restore was interrupted, so the replicas may differ. Restore() ends it.
  bool poisoned() const { return poisoned_; }
  const ParameterGroups& groups() const { return *groups_; }
  // Factor of the loss before it is differentiated: 1 unless the precision is float16.
  double gradient_scale() const {
    return spec_.precision == Precision::kFloat16 ? scaler_.scale() : 1;
  }

  // Returns the primaries' parameters and buffers. trained_only: only the parameters that updates
  // change, without frozen ones; a parameter with several names is listed under the first one.
  absl::StatusOr<std::vector<StateTensor>> State(bool trained_only = false);
  // Returns the primaries' parameters and buffers on `device`. Does not copy parameters of replicas
  // that are on it.
  absl::StatusOr<std::vector<StateEntry>> Share(c10::Device device);
  // Returns what training has changed, for a checkpoint.
  absl::StatusOr<TrainingSnapshot> Snapshot();
  // Returns the snapshot from before the Forward() whose graph is kept; keeps the graph.
  absl::StatusOr<TrainingSnapshot> SnapshotBeforeForward();
  // FAILED_PRECONDITION if `snapshot` is of another model or optimizer.
  absl::Status CheckSnapshot(const TrainingSnapshot& snapshot) const;
  // Restores `snapshot`, into any number of replicas. Changes nothing if CheckSnapshot() fails.
  absl::Status Restore(const TrainingSnapshot& snapshot);
  // Returns the memory that the trainer takes on each device.
  std::vector<DeviceMemory> memory() const;

 private:
  // The shapes of all inputs and targets of a batch.
  using Shapes = std::vector<std::vector<int64_t>>;

  DataParallel(const ModelConfig& config, TrainerSpec spec,
               std::shared_ptr<const Objective> objective, const Placement& placement);

  absl::Status Init(Placement placement);
  // FAILED_PRECONDITION if the gradients of the chunks of stage `s` do not add up to the batch's.
  absl::Status CheckAdditive(size_t s) const;
  TrainedModel model() const;
  bool has_buffers() const;

  // Creates a step for `batch`, without passes. `with_loss`: the step computes the loss.
  std::unique_ptr<TrainStep> NewStep(const Batch& batch, bool with_loss);
  // Creates a training step that splits `batch` into micro-batches and these into chunks.
  absl::StatusOr<std::unique_ptr<TrainStep>> Split(const Batch& batch,
                                                   const std::vector<GroupValues>* update);
  // Returns the rows of each micro-batch.
  std::vector<int64_t> MicroBatches(int64_t rows) const;
  // Prepares `step` to end with an update.
  absl::Status AddUpdate(TrainStep& step, const std::vector<GroupValues>& values);
  absl::Status PrepareOptimizers(const std::vector<GroupValues>& values);
  // Gives every replica an optimizer in the primary's state.
  absl::Status EqualizeOptimizers();
  // Records the outcome of a step in the trainer's state: `status` is what its ranks returned.
  absl::StatusOr<OperationResult> Record(TrainStep& step, const absl::Status& status);
  // On error, rolls back; if the step has already changed something, marks the trainer poisoned.
  absl::Status RollBackOnError(TrainStep& step, const absl::Status& status);
  void RecordUpdate(TrainStep& step, OperationResult* result);
  void Report(const TrainStep& step, OperationResult* result) const;

  // Runs Forward() on one rank; the output rank sets the outputs of `*result`.
  absl::Status ForwardRank(const RankContext& context, TrainStep& step, bool keep_graph,
                           OperationResult* result);
  // Commits the buffers after a forward pass in training mode, if they are finite. `keep_earlier`:
  // for SnapshotBeforeForward().
  absl::Status CommitBuffers(const RankContext& context, bool keep_earlier);
  bool BuffersFinite() const;
  std::vector<HostTensor> Export(const std::vector<std::vector<at::Tensor>>& gathered) const;
  absl::StatusOr<std::vector<at::Tensor>> ReadOutputGradients(
      const std::vector<HostTensor>& output_gradients) const;
  absl::Status CheckFiniteGradients(const std::vector<HostTensor>& output_gradients) const;
  // Adds the loss of each chunk of a model that computes its own loss.
  absl::Status AddChunkLosses(const BatchPass& pass, const std::vector<at::Tensor>& outputs,
                              Evaluation* evaluation) const;

  // Call before parameters change.
  absl::Status UnshareParameters();
  void CountBytes();
  // Restores the committed buffers and drops every graph.
  void RollBack();
  void ResetBuffers();

  // Immutable after Init().
  const ModelConfig config_;
  const TrainerSpec spec_;
  const std::shared_ptr<const Objective> objective_;
  const RankMap ranks_;
  const bool overlap_reduction_;
  std::optional<ParameterGroups> groups_;
  std::vector<std::unique_ptr<Stage>> stages_;

  // Used by the thread that runs the operation, or by workers while it waits for them.
  int64_t accumulated_ = 0;
  int64_t skipped_batches_ = 0;
  // By stage: replicas that hold accumulated gradients.
  std::vector<size_t> holding_;
  // Share() or Snapshot() may have returned the parameters since they changed.
  bool shared_ = false;
  // An accumulated gradient has overflowed float16, so the update will be skipped.
  bool overflow_ = false;
  bool poisoned_ = false;
  GradScaler scaler_;
  SyncChoice sync_;
  bool prepared_ = false;
  // Shapes of batches that have run a step without overlap, which filled the allocator's caches.
  std::set<Shapes> settled_;
  // Every replica has an optimizer in the primary's state.
  bool optimizers_equal_ = false;
  // By rank: the peak memory of an operation, in bytes.
  std::vector<int64_t> peaks_;
  // By stage and replica: bytes held between operations.
  std::vector<std::vector<int64_t>> bytes_;
  // By rank: whether the primaries' buffers on it stayed finite in the current Forward().
  std::vector<char> buffers_finite_;
  // Kept by Forward(keep_graph).
  std::unique_ptr<Batch> kept_batch_;
  std::unique_ptr<BatchPass> kept_;
  // The kept pass computed something that is not finite, so its Backward() is skipped.
  bool kept_is_skipped_ = false;
};

}  // namespace braid
