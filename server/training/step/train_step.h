// One training step, or a part of one, on its way through the workers: gradients, checks, update.
//
//   reduce → check that everything is finite → clip and update → broadcast the parameters
//
// DataParallel::RunTrainStep() shows all phases of a step in their order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/devices/worker_group.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"
#include "server/parallel/overlapped_reduce.h"
#include "server/training/optim/optimizer.h"
#include "server/training/optim/schedule.h"
#include "server/training/step/batch_pass.h"
#include "server/training/step/rank_context.h"

namespace braid {

// Returns FAILED_PRECONDITION: `what` is not finite, so the batch was not applied.
absl::Status NotFiniteError(absl::string_view what);

// Outcome of the check of a batch.
struct BatchOutcome {
  bool counts = true;
  bool overflow = false;  // of float16 gradients: the batch counts, but the update is skipped
};

// Owned by the thread that runs the operation. It calls the methods without a RankContext while no
// worker runs the step. Every rank of the worker group calls the others in the same order, on its
// own worker.
class TrainStep {
 public:
  struct Options {
    // By stage: replicas whose flat gradients hold earlier batches; all 0: no batch is accumulated.
    std::vector<size_t> holding;
    bool accumulating = false;
    // An accumulated gradient has overflowed float16, so an update is skipped.
    bool overflowed = false;
    // Factor of the loss, and so of the gradients.
    double gradient_scale = 1;
    // The passes compute a loss.
    bool with_loss = true;
    // By rank: raised to the peak memory of the step, in bytes. nullptr: not measured.
    std::vector<int64_t>* peaks = nullptr;
  };
  // The update at the end of a step.
  struct Update {
    std::vector<GroupValues> values;  // of each parameter group
    // Each replica updates its own parameters with its own optimizer.
    bool all_reduce = false;
  };

  // `batch`: its gradient_scale is set from `options`. `model` outlives the step.
  TrainStep(const TrainedModel& model, const Batch& batch, Options options);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Setup, by the owner.
  // Adds a pass over `rows` rows of the batch.
  void AddMicroBatch(int64_t rows);
  // Adds the pass whose graph was kept.
  void AddPass(std::unique_ptr<BatchPass> pass);
  // Ends the step with an update, for which the stages' optimizers are prepared.
  void SetUpdate(Update update) { update_ = std::move(update); }
  // Sums the gradients of all NCCL stages while the backward passes go on. Requires
  // can_overlap_reduce() and an update.
  void OverlapReduce();
  // Saves the accumulated gradients, if the passes would add to them before they are checked.
  absl::Status SaveGradients();

  const Batch& batch() const { return batch_; }
  const std::vector<std::unique_ptr<BatchPass>>& passes() const { return passes_; }
  std::unique_ptr<BatchPass> TakePass() { return std::move(passes_.front()); }
  // The losses' denominators over the whole batch; empty: not needed.
  const std::vector<double>& whole() const { return whole_; }
  bool with_loss() const { return options_.with_loss; }
  bool updates() const { return update_.has_value(); }
  // Micro-batches and earlier batches are summed on each replica first.
  bool can_overlap_reduce() const { return !options_.accumulating && passes_.size() == 1; }

  // Runs `work` for every rank.
  absl::Status OnEachRank(absl::FunctionRef<absl::Status(const RankContext&)> work);

  // The phases of a step.
  // Computes the losses' denominators over the whole batch, if its parts are weighted by them. The
  // output rank computes; the other ranks may read the result after the next barrier.
  absl::Status ComputeDenominators(const RankContext& context);
  absl::Status Backward(const RankContext& context, BatchPass& pass);
  // Sums the replicas' gradients into the primary's, for an update of this batch alone. Gradients
  // of earlier batches must not change before the check: then Apply() makes the sum.
  absl::Status Reduce(const RankContext& context);
  // Reads the loss, the range and the norm of the gradients with one wait for the device. Fails
  // with FAILED_PRECONDITION where a batch that is not finite is an error. Ends with a barrier.
  absl::Status CheckFinite(const RankContext& context);
  // Commits the batch, or drops it; then clips the gradients and updates the parameters, if the
  // step has an update. An error leaves the replicas in different states: changing().
  absl::Status Apply(const RankContext& context);
  // Copies the updated parameters to the replicas that have not updated their own.
  absl::Status Broadcast(const RankContext& context);

  // Results, read by the owner once the ranks have ended.
  double loss() const;
  absl::StatusOr<BatchOutcome> Outcome() const;
  // Returns Options::holding after the step.
  std::vector<size_t> HoldingAfter() const;
  // A rank has begun to change the trainer's state.
  bool changing() const;
  // After an error: waits for sums that have begun, then restores the saved gradients.
  void WaitForReduces();
  void RestoreGradients();
  // Counts the update in the optimizers.
  void CommitUpdate();
  // Returns the norm of the gradients before clipping, where they are clipped by norm.
  std::optional<double> gradient_norm() const { return gradient_norm_; }
  const PhaseTimes& times() const { return ranks_.times(); }

 private:
  // Part `index` of `of` of a stage's flat buffers, which one worker sums and updates.
  struct Part {
    size_t index = 0;
    size_t of = 1;
  };

  // The sum reads the passes' gradients where the backward pass left them.
  bool direct() const;
  // Gradients stay separate until the check has accepted them.
  bool holds() const { return direct() || (options_.accumulating && passes_.size() == 1); }
  // Reduce() sums the gradients, before the check.
  bool reduces_first() const { return updates() && !options_.accumulating; }
  // The sums of stage `s` are made during the backward pass.
  bool overlaps(size_t s) const { return !overlapped_.empty() && overlapped_[s] != nullptr; }
  // Runs `work(stage index, stage, replica)` for each replica on `rank`.
  template <typename Work>
  absl::Status ForEachReplica(size_t rank, Work work) const;

  static bool HasPart(const Stage& stage, size_t replica);
  static Part PartOf(const Stage& stage, size_t replica);

  // Barrier after which collectives and other ranks may read what this rank has queued.
  absl::Status SyncForSum(const RankContext& context);
  // Sums all replicas' gradients. Requires SyncForSum() before it.
  absl::Status Sum(const RankContext& context);
  absl::Status SumStage(size_t s, size_t replica);
  // Sums the held gradients into the primary's flat gradients, and records whether they are finite.
  absl::Status SumHeld(size_t s, size_t replica, size_t rank);
  // Copies the primary's sums to the other replicas.
  void CopySum(const std::vector<at::Tensor>& gradients, const Slice& slice) const;
  // Requests the range of the rank's part of the sums, or of the gradients of its replicas.
  void RequestSumRanges(const RankContext& context);
  void RequestReplicaRanges(const RankContext& context);
  // Raises `*share` to the RangeShare() of `gradients` once it is read.
  static void RequestRange(const RankContext& context, const at::Tensor& gradients, double* share);
  // Requests the norm of the rank's part of the sums.
  void RequestNorms(const RankContext& context);
  // Checks the exact sums where every replica's gradients are finite but their sum may overflow.
  absl::Status CheckSums(const RankContext& context);
  at::Tensor SumOf(size_t s, size_t buffer) const;
  absl::Status CheckBuffers(size_t rank) const;
  // Commits buffers and gradients of a batch that counts; else restores them.
  void CommitBatch(size_t rank, bool counts);
  bool finite() const;
  bool sum_may_overflow() const;
  bool applies_update() const;
  absl::Status UpdateParameters(const RankContext& context);
  void UpdateStage(Stage& stage, const UpdatePlan& plan, size_t replica, double factor) const;
  static absl::Status CopyParameters(Stage& stage, size_t replica);

  const TrainedModel model_;
  Batch batch_;  // the passes refer to it
  const Options options_;
  std::vector<std::unique_ptr<BatchPass>> passes_;
  std::vector<RankGroup> groups_;
  std::optional<Update> update_;
  RankExecution ranks_;
  // By stage: sums made during the backward pass; nullptr: none.
  std::vector<std::unique_ptr<OverlappedReduce>> overlapped_;
  // By stage and replica: flat gradients as they were.
  std::vector<std::vector<SavedGradients>> saved_;
  // The losses' denominators over the whole batch; the output rank writes them.
  std::vector<double> whole_;

  // By rank; each rank writes its own.
  // The largest RangeShare() of its flat gradients, and of the gradients that its passes hold.
  std::vector<double> flat_shares_;
  std::vector<double> held_shares_;
  // 1 if its part of the sums is finite.
  std::vector<char> sum_finite_;
  std::vector<char> changing_;
  // By rank and stage.
  std::vector<double> partial_norms_;
  // The primary's rank of a stage writes its plan, the output rank the norm.
  std::vector<UpdatePlan> plans_;
  std::optional<double> gradient_norm_;
};

}  // namespace braid
