// A model in training, in stages that are replicated over the devices.
//
// Called by one thread, the trainer's; the tensors are touched on the workers alone. What fails
// before the update leaves parameters, buffers, accumulated gradients and optimizer as they were.
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
#include "server/training/step/phase_times.h"
#include "server/training/step/placement.h"
#include "server/training/step/rank_map.h"
#include "server/training/step/snapshot.h"
#include "server/training/step/stage.h"
#include "server/training/step/sync_choice.h"
#include "server/training/step/update_pass.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// What an operation did.
struct WorkResult {
  std::optional<double> loss;
  // In the order of the model's outputs; only of Forward().
  std::vector<HostTensor> outputs;
  std::vector<TrainingChunk> chunks;
  std::vector<PhaseTime> phases;
  // Something was not finite: the batch, or the update, was left out.
  bool skipped = false;
  bool updated = false;
  std::optional<double> gradient_norm;
  // 1 - mean / maximum of the workers' time for forward and backward; of several workers.
  std::optional<double> imbalance;
};

// Thread-compatible.
class DataParallel {
 public:
  // `spec` as Objective, ParameterGroups and Place() have filled it. FAILED_PRECONDITION if the
  // model is not batched, has no trainable parameter, or has a gradient that the batch's chunks
  // cannot make; INVALID_ARGUMENT naming the field of `spec` that is wrong. Blocks.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const ModelConfig& config, TrainerSpec spec, std::shared_ptr<const Objective> objective,
      Placement placement);
  ~DataParallel();

  // Forward, loss and backward; adds to the accumulated gradients. With `update`, which has the
  // values of each parameter group, one update follows.
  absl::StatusOr<WorkResult> ForwardBackward(const Batch& batch,
                                             const std::vector<GroupValues>* update);
  // Forward alone, and the loss where there are targets. In training mode it updates the buffers.
  // `keep_graph`: for Backward(), until any other call but Evaluate().
  absl::StatusOr<WorkResult> Forward(const Batch& batch, bool keep_graph);
  // From the outputs' gradients, by name: adds to the accumulated gradients. FAILED_PRECONDITION if
  // no graph was kept, INVALID_ARGUMENT naming output_gradients[i].
  absl::StatusOr<WorkResult> Backward(const std::vector<HostTensor>& output_gradients);
  // No Backward() comes any more.
  void DropKept();
  // One update from the accumulated gradients, which it clears; none, skipped, if all batches since
  // the last one were left out.
  absl::StatusOr<WorkResult> Update(const std::vector<GroupValues>& values);
  // Forward in eval mode; its loss and metrics are added to `evaluation`. Changes nothing.
  absl::Status Evaluate(const Batch& batch, Evaluation* evaluation);

  // Batches accumulated since the last update.
  int64_t accumulated() const { return accumulated_; }
  // Batches left out since then, for what was not finite.
  int64_t left_out() const { return left_out_; }
  // A graph is kept for Backward().
  bool keeps_graph() const { return kept_ != nullptr; }
  // An update, or a restoration, failed halfway: the replicas differ.
  bool torn() const { return torn_; }
  const ParameterGroups& groups() const { return *groups_; }
  // What the loss is multiplied by before it is differentiated: 1 but for float16.
  double gradient_scale() const {
    return spec_.precision == Precision::kFloat16 ? scaler_.scale() : 1;
  }

  // The primaries' parameters and buffers.
  absl::StatusOr<std::vector<StateTensor>> State();
  // All that a checkpoint holds; copies made on the devices, then on the host.
  absl::StatusOr<TrainingSnapshot> Snapshot();
  // The same of before the Forward() whose graph is kept, which stays.
  absl::StatusOr<TrainingSnapshot> SnapshotBeforeForward();
  // FAILED_PRECONDITION if `snapshot` is of another model or optimizer.
  absl::Status CheckSnapshot(const TrainingSnapshot& snapshot) const;
  // Goes on from `snapshot`, with any number of replicas. Nothing has changed if it fails the
  // check.
  absl::Status Restore(const TrainingSnapshot& snapshot);
  // What it takes on each device.
  std::vector<DeviceMemory> memory() const;

 private:
  struct Run;
  // Of all inputs and targets of a batch.
  using Shapes = std::vector<std::vector<int64_t>>;

  DataParallel(const ModelConfig& config, TrainerSpec spec,
               std::shared_ptr<const Objective> objective, const Placement& placement);

  // What became of a batch whose numbers are known.
  struct Verdict {
    bool counts = true;
    bool overflow = false;  // of float16: it counts, the update does not come
  };

  absl::Status Init(Placement placement);
  // FAILED_PRECONDITION if the gradients of the chunks of stage `s` do not add up to the batch's.
  absl::Status CheckAdditive(size_t s) const;
  TrainedModel model() const;
  // Rows of each piece that `rows` rows are worked on in.
  std::vector<int64_t> Pieces(int64_t rows) const;
  std::vector<size_t> HoldingAfter(const Run& run) const;
  bool has_buffers() const;

  absl::Status SaveGradients(Run& run);
  absl::Status MakeUpdate(Run& run, const std::vector<size_t>& holding,
                          const std::vector<GroupValues>& values);
  absl::Status PrepareOptimizers(const std::vector<GroupValues>& values);
  // Has the gradients of the run summed during its backward pass, where that can be.
  void ReduceMeanwhile(Run& run, bool all_reduce);
  // Returns whether a failed sum would lose nothing, so that it comes before anything is changed.
  bool SumsFirst(const Run& run) const;
  // Gives every replica an optimizer in the primary's state.
  absl::Status EqualizeOptimizers();

  // What each rank does, on its worker, in this order.
  absl::Status Compute(Run& run, WorkerGroup& worker_group, size_t rank);
  // Whether it is finite; sums it at once where that may be done before all is known to count.
  absl::Status Examine(Run& run, WorkerGroup& worker_group, size_t rank);
  // Whether the model left the buffers as they can be committed.
  absl::Status CheckBuffers(size_t rank) const;
  // Whether what would be applied is finite. Ends with a meeting.
  absl::Status ExamineSum(Run& run, WorkerGroup& worker_group, size_t rank);
  // What all replicas' gradients of flat buffer `buffer` add up to, on the primary's worker.
  at::Tensor SumOf(const Run& run, size_t s, size_t buffer) const;
  absl::Status Apply(Run& run, WorkerGroup& worker_group, size_t rank);
  // Of Forward(): commits the buffers, if they may be. `keep_earlier`: for SnapshotBeforeForward().
  absl::Status ExamineBuffers(Run& run, WorkerGroup& worker_group, size_t rank, bool keep_earlier);
  // Why Backward() may not use the graph up, if so.
  absl::Status JudgeOutputGradients(const std::vector<HostTensor>& output_gradients) const;
  // Whether what was computed counts: the same for every rank.
  absl::StatusOr<Verdict> Judge(const Run& run) const;

  // Returns `status`, after an error with everything as it was, or torn.
  absl::Status Recover(Run& run, const absl::Status& status);
  void ConcludeUpdate(Run& run, WorkResult* result);
  void Report(const Run& run, WorkResult* result) const;
  std::vector<HostTensor> Export(const std::vector<std::vector<at::Tensor>>& gathered) const;
  absl::StatusOr<std::vector<at::Tensor>> ReadOutputGradients(
      const std::vector<HostTensor>& output_gradients) const;
  static absl::Status SnapshotStage(Stage& stage, size_t replicas, TrainingSnapshot* snapshot);
  // `first`: the index of the stage's first parameter. What is checked can be restored.
  static absl::Status CheckStage(const Stage& stage, const TrainingSnapshot& snapshot,
                                 size_t first);
  static absl::Status RestoreStage(Stage& stage, const TrainingSnapshot& snapshot, size_t first);
  static void RestoreGradients(Stage& stage, const TrainingSnapshot& snapshot, size_t r);
  // Of a model that computes its loss: that of each chunk.
  absl::Status AddChunkLosses(const BatchPass& pass, const std::vector<at::Tensor>& outputs,
                              Evaluation* evaluation) const;
  void CountBytes();
  // Goes back to the committed buffers and drops every graph.
  void RollBack();
  // Goes back to the committed buffers.
  void ResetBuffers();

  // Immutable after Init().
  const ModelConfig config_;
  const TrainerSpec spec_;
  const std::shared_ptr<const Objective> objective_;
  const RankMap roster_;
  const bool overlap_reduction_;
  std::optional<ParameterGroups> groups_;
  std::vector<std::unique_ptr<Stage>> stages_;

  // Touched only by the trainer's thread, or while it waits for a worker group.
  int64_t accumulated_ = 0;
  int64_t left_out_ = 0;
  // By stage: replicas that hold accumulated gradients.
  std::vector<size_t> holding_;
  // A gradient of those that were accumulated has overflowed float16: the update is to be left out.
  bool overflow_ = false;
  bool torn_ = false;
  GradScaler scaler_;
  SyncChoice sync_;
  bool prepared_ = false;
  // Of batches that an update was made from without overlap, which filled the allocator's caches.
  std::set<Shapes> settled_;
  // All replicas have optimizers, in the primary's state.
  bool optimizers_equal_ = false;
  // By rank: the most memory that an operation has taken.
  std::vector<int64_t> peaks_;
  // By stage and replica: what it takes between operations.
  std::vector<std::vector<int64_t>> bytes_;
  // Of Forward(keep_graph).
  std::unique_ptr<Batch> kept_batch_;
  std::unique_ptr<BatchPass> kept_;
  // What it was made of is not finite: its Backward() is skipped.
  bool kept_is_skipped_ = false;
};

}  // namespace braid
