// One update of all stages from their accumulated gradients:
//
//   sum the replicas' gradients → clip → update → every replica has the parameters
//
// Every rank of a worker group calls Run(), each on its own worker.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/devices/worker_group.h"
#include "server/parallel/flat_slice.h"
#include "server/training/optim/optimizer.h"
#include "server/training/optim/schedule.h"
#include "server/training/step/batch_pass.h"
#include "server/training/step/phase_times.h"

namespace braid {

class UpdatePass {
 public:
  // `replicas`: for each stage how many of its replicas hold gradients. `gradient_scale`: what they
  // are multiplied by. `model` outlives the pass. The stages' optimizers are prepared; with
  // `all_reduce` each replica has one.
  UpdatePass(const TrainedModel& model, std::vector<size_t> replicas,
             std::vector<GroupValues> values, double gradient_scale, bool all_reduce);

  // Sums the gradients that `pass` holds, all of them in host memory, into the primary's flat ones:
  // the rank's part of it. By every rank, before Run(), which then sums nothing. Returns whether
  // the rank's part of the sums is finite.
  bool SumHeld(const BatchPass& pass, size_t rank);
  // The gradients of stage `stage` have been summed already. Before Run().
  void SkipReduce(size_t stage) { reduced_[stage] = true; }
  // Sums the gradients, as Run() does where no rank has called it. An error leaves nothing but the
  // flat gradients changed. Every rank's call ends before Run() begins.
  absl::Status Sum(WorkerGroup& worker_group, size_t rank, PhaseTimes* times);

  // An error leaves the replicas torn.
  absl::Status Run(WorkerGroup& worker_group, size_t rank, PhaseTimes* times);

  // Counts the update: by one thread, after Run().
  void Commit();

  // Of the gradients before clipping, where they are clipped by norm.
  std::optional<double> gradient_norm() const { return gradient_norm_; }

 private:
  void SumSlices(size_t s, size_t replica) const;
  // Gives the other replicas the primary's sums, where each updates its own parameters.
  void CopySum(const std::vector<at::Tensor>& gradients, const Slice& slice) const;
  absl::Status Reduce(size_t s, size_t replica);
  // Gives every replica the primary's sums, where Reduce() has not.
  absl::Status ShareSums(WorkerGroup& worker_group, size_t rank);
  // The factor for the gradients: unscaled, and clipped by norm.
  absl::StatusOr<double> ClipByNorm(WorkerGroup& worker_group, size_t rank);
  void Update(Stage& stage, const UpdatePlan& plan, size_t replica, double factor);
  // Gives every replica the primary's parameters.
  absl::Status ShareParameters(WorkerGroup& worker_group, size_t rank);
  // Runs `work(stage index, stage, replica)` for each replica that is `rank`'s.
  template <typename Work>
  absl::Status ForMine(size_t rank, Work work) const;

  const TrainedModel model_;
  const std::vector<size_t> replicas_;
  const std::vector<GroupValues> values_;
  const double gradient_scale_;
  const bool all_reduce_;
  std::vector<char> summed_;   // by rank; each writes its own: it has summed its part
  std::vector<bool> reduced_;  // by stage
  // By stage; the primary's rank writes it.
  std::vector<UpdatePlan> plans_;
  // By rank and stage; each rank writes its own.
  std::vector<double> partial_norms_;
  std::optional<double> gradient_norm_;  // the output rank writes it
};

}  // namespace braid
