// The loss of a batch's rows, on the gathered outputs or by chunk.
#include <numeric>
#include <utility>

#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/devices/random.h"
#include "server/training/step/batch_pass.h"

namespace braid {

uint64_t BatchPass::LossSeed(int64_t start) const {
  // After the last stage's.
  return MixSeed(MixSeed(batch_.seed, stages_.size()), static_cast<uint64_t>(start));
}

absl::StatusOr<std::vector<double>> BatchPass::SharesOf(int64_t start, int64_t rows,
                                                        const std::vector<double>& whole) const {
  if (whole.empty()) {
    return std::vector<double>(model_.objective->losses().size(), 1);
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<double> part,
                         model_.objective->Denominators(batch_.targets, start, rows));
  return model_.objective->Shares(part, whole);
}

absl::Status BatchPass::CentralLoss(const std::vector<double>& whole, bool with_gradient) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<double> shares, SharesOf(start_, rows_, whole));
  BRAID_ASSIGN_OR_RETURN(const Tensors gathered, GatherSome(model_.objective->takes_output()));
  if (IsFirstPart(start_, rows_)) {
    BRAID_RETURN_IF_ERROR(model_.objective->CheckAddsUp(gathered, batch_.targets, with_gradient));
  }
  std::optional<RandomSeedGuard> random;
  if (model_.objective->has_module()) {
    random.emplace(model_.roster->output_device, LossSeed(start_));
  }
  BRAID_ASSIGN_OR_RETURN(ObjectiveValue value,
                         model_.objective->Compute(gathered, batch_.targets, start_, rows_, shares,
                                                   {with_gradient, batch_.gradient_scale}));
  losses_[0] = value.loss;
  gathered_gradients_ = std::move(value.output_gradients);
  return absl::OkStatus();
}

absl::Status BatchPass::ChunkLoss(size_t chunk, const std::vector<double>& whole,
                                  bool with_gradient) {
  const StageRun& last = stages_.back();
  const int64_t start = start_ + StartOf(stages_.size() - 1, chunk);
  const int64_t rows = last.split[chunk];
  BRAID_ASSIGN_OR_RETURN(std::vector<double> shares, SharesOf(start, rows, whole));
  if (model_.spec->unweighted_mean) {
    // Of the chunks of this piece, which is weighted by its rows.
    const double pieces = static_cast<double>(rows_) / static_cast<double>(batch_.rows);
    shares.assign(shares.size(), pieces / static_cast<double>(last.split.size()));
  }
  if (IsFirstPart(start, rows)) {
    BRAID_RETURN_IF_ERROR(
        model_.objective->CheckAddsUp(last.outputs[chunk], batch_.targets, with_gradient));
  }
  std::optional<RandomSeedGuard> random;
  if (model_.objective->has_module()) {
    random.emplace(model_.stages.back()->worker(chunk).torch_device(), LossSeed(start));
  }
  BRAID_ASSIGN_OR_RETURN(ObjectiveValue value,
                         model_.objective->Compute(last.outputs[chunk], batch_.targets, start, rows,
                                                   shares, {with_gradient, batch_.gradient_scale}));
  losses_[chunk] = value.loss;
  chunk_gradients_[chunk] = std::move(value.output_gradients);
  return absl::OkStatus();
}

absl::Status BatchPass::Loss(WorkerGroup& worker_group, size_t rank,
                             const std::vector<double>& whole, bool with_gradient,
                             PhaseTimes* times) {
  const bool central = model_.spec->loss_mode == LossMode::kCentral;
  const std::optional<size_t> chunk = Active(stages_.size() - 1, rank);
  if (central ? rank == model_.roster->output_rank : chunk.has_value()) {
    BRAID_RETURN_IF_ERROR(times->Measure(worker_group, rank, Phase::kLoss, [&] {
      return central ? CentralLoss(whole, with_gradient) : ChunkLoss(*chunk, whole, with_gradient);
    }));
  }
  return worker_group.Barrier(rank);
}

double BatchPass::loss() const { return std::accumulate(losses_.begin(), losses_.end(), 0.0); }

void BatchPass::SetOutputGradients(std::vector<at::Tensor> gradients) {
  gathered_gradients_ = std::move(gradients);
}

}  // namespace braid
