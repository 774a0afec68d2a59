#include "server/training/step/train_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/parallel/finite.h"
#include "server/parallel/sum_gradients.h"
#include "server/training/step/clipping.h"

namespace braid {
namespace {

// Gradients with a total RangeShare() of at most this have a finite sum, rounding included.
constexpr double kSurelyFinite = 0.99;

bool AllShared(const std::vector<Stage*>& stages) {
  return std::all_of(stages.begin(), stages.end(),
                     [](const Stage* stage) { return stage->link() == Link::kSharedMemory; });
}

bool AnyCopies(const std::vector<Stage*>& stages) {
  return std::any_of(stages.begin(), stages.end(), [](const Stage* stage) {
    return stage->link() == Link::kCopies && stage->size() > 1;
  });
}

at::Tensor Cut(const at::Tensor& flat, const Slice& slice) {
  return flat.narrow(0, slice.begin, slice.size());
}

bool AllTrue(const std::vector<char>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](char flag) { return flag != 0; });
}

double Total(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

absl::Status NotFiniteError(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " is not finite: the step was not applied (check the data for NaN, lower the "
                   "learning rate, clip the gradients, or skip such batches with non_finite)"));
}

TrainStep::TrainStep(const TrainedModel& model, const Batch& batch, Options options)
    : model_(model),
      batch_(batch),
      options_(std::move(options)),
      ranks_(model_.ranks->workers),
      flat_shares_(model_.ranks->workers.size()),
      held_shares_(model_.ranks->workers.size()),
      sum_finite_(model_.ranks->workers.size(), 1),
      changing_(model_.ranks->workers.size(), 0),
      partial_norms_(model_.ranks->workers.size() * model_.stages.size()),
      plans_(model_.stages.size()) {
  batch_.gradient_scale = options_.gradient_scale;
}

void TrainStep::AddPass(std::unique_ptr<BatchPass> pass) {
  for (RankGroup& group : pass->RankGroups()) {
    groups_.push_back(std::move(group));
  }
  passes_.push_back(std::move(pass));
}

void TrainStep::AddMicroBatch(int64_t rows) {
  int64_t start = 0;
  for (const auto& pass : passes_) {
    start += pass->rows();
  }
  AddPass(std::make_unique<BatchPass>(model_, batch_, start, rows, groups_.size()));
}

void TrainStep::OverlapReduce() {
  std::vector<OverlappedReduce*> reduces(model_.stages.size());
  overlapped_.resize(model_.stages.size());
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    Stage& stage = *model_.stages[s];
    if (stage.link() != Link::kNccl) {
      continue;
    }
    std::vector<FlatParameters*> flat;
    for (size_t r = 0; r < stage.size(); ++r) {
      flat.push_back(&stage.flat(r));
    }
    overlapped_[s] = std::make_unique<OverlappedReduce>(stage.communicator(), std::move(flat),
                                                        update_->all_reduce);
    reduces[s] = overlapped_[s].get();
  }
  passes_.front()->OverlapReduce(std::move(reduces));
}

absl::Status TrainStep::SaveGradients() {
  if (!options_.accumulating || holds()) {
    return absl::OkStatus();
  }
  saved_.resize(model_.stages.size());
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    Stage& stage = *model_.stages[s];
    saved_[s].resize(stage.size());
    BRAID_RETURN_IF_ERROR(RunOnEach(stage.workers(), Phase::kBackward, [&](size_t r) {
      saved_[s][r] = stage.flat(r).SaveGradients();
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::Status TrainStep::OnEachRank(absl::FunctionRef<absl::Status(const RankContext&)> work) {
  return ranks_.OnEachRank(groups_, [&](const RankContext& context) {
    std::optional<PeakMemory> peak;
    if (options_.peaks != nullptr) {
      peak.emplace(context.worker().device(), &(*options_.peaks)[context.rank()]);
    }
    return work(context);
  });
}

bool TrainStep::direct() const {
  return reduces_first() && passes_.size() == 1 && AllShared(model_.stages);
}

bool TrainStep::HasPart(const Stage& stage, size_t replica) {
  return replica == 0 || stage.link() == Link::kSharedMemory;
}

TrainStep::Part TrainStep::PartOf(const Stage& stage, size_t replica) {
  return stage.link() == Link::kSharedMemory ? Part{replica, stage.size()} : Part{};
}

template <typename Work>
absl::Status TrainStep::ForEachReplica(size_t rank, Work work) const {
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    if (const std::optional<size_t> replica = model_.ranks->replica[s][rank]) {
      BRAID_RETURN_IF_ERROR(work(s, *model_.stages[s], *replica));
    }
  }
  return absl::OkStatus();
}

absl::Status TrainStep::ComputeDenominators(const RankContext& context) {
  const bool in_parts = passes_.size() > 1 || model_.spec->loss_mode != LossMode::kCentral;
  if (in_parts && context.rank() == model_.ranks->output_rank) {
    BRAID_ASSIGN_OR_RETURN(whole_, model_.objective->Denominators(batch_.targets, 0, batch_.rows));
  }
  return absl::OkStatus();
}

absl::Status TrainStep::Backward(const RankContext& context, BatchPass& pass) {
  const bool first = !options_.accumulating && &pass == passes_.front().get();
  return pass.Backward(context, first, holds());
}

absl::Status TrainStep::SyncForSum(const RankContext& context) {
  BRAID_RETURN_IF_ERROR(ForEachReplica(context.rank(), [](size_t, Stage& stage, size_t replica) {
    return stage.MarkReady(replica);
  }));
  return context.Barrier();
}

absl::Status TrainStep::Reduce(const RankContext& context) {
  if (!reduces_first()) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(SyncForSum(context));
  return Sum(context);
}

absl::Status TrainStep::Sum(const RankContext& context) {
  const c10::AutoGradMode no_grad(false);
  BRAID_RETURN_IF_ERROR(context.Measure(Phase::kReduce, [&] {
    return ForEachReplica(context.rank(), [&](size_t s, Stage&, size_t replica) {
      return direct() ? SumHeld(s, replica, context.rank()) : SumStage(s, replica);
    });
  }));
  if (!update_->all_reduce || !AnyCopies(model_.stages)) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(context.Barrier());
  return ForEachReplica(context.rank(), [](size_t, Stage& stage, size_t replica) {
    for (size_t b = 0;
         stage.link() == Link::kCopies && replica > 0 && b < stage.flat(0).gradients().size();
         ++b) {
      stage.flat(replica).gradients()[b].copy_(stage.flat(0).gradients()[b]);
    }
    return absl::OkStatus();
  });
}

absl::Status TrainStep::SumHeld(size_t s, size_t replica, size_t rank) {
  Stage& stage = *model_.stages[s];
  for (size_t b = 0; b < stage.flat(0).gradients().size(); ++b) {
    const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::gradients, b);
    const Slice slice = SliceOf(all[0], replica, stage.size());
    const bool finite = SumGradients(passes_.front()->held(s), stage.flat(0), b, slice);
    sum_finite_[rank] = sum_finite_[rank] && finite ? 1 : 0;
    CopySum(all, slice);
  }
  return absl::OkStatus();
}

absl::Status TrainStep::SumStage(size_t s, size_t replica) {
  Stage& stage = *model_.stages[s];
  if (overlaps(s)) {
    return absl::OkStatus();
  }
  const size_t holding = HoldingAfter()[s];
  for (size_t b = 0; b < stage.flat(0).gradients().size(); ++b) {
    const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::gradients, b);
    if (stage.link() == Link::kSharedMemory) {
      const Slice slice = SliceOf(all[0], replica, stage.size());
      const at::Tensor sum = Cut(all[0], slice);
      for (size_t r = 1; r < holding; ++r) {
        sum.add_(Cut(all[r], slice));
      }
      CopySum(all, slice);
    } else if (stage.link() == Link::kNccl && replica == 0) {
      BRAID_RETURN_IF_ERROR(update_->all_reduce ? stage.communicator().AllReduce(all)
                                                : stage.communicator().Reduce(all));
    } else if (replica == 0) {
      for (size_t r = 1; r < holding; ++r) {
        all[0].add_(all[r].to(all[0].device()));
      }
    }
  }
  return absl::OkStatus();
}

void TrainStep::CopySum(const std::vector<at::Tensor>& gradients, const Slice& slice) const {
  for (size_t r = 1; update_->all_reduce && r < gradients.size(); ++r) {
    Cut(gradients[r], slice).copy_(Cut(gradients[0], slice));
  }
}

absl::Status TrainStep::CheckFinite(const RankContext& context) {
  if (passes_.empty()) {
    return absl::OkStatus();
  }
  const Phase phase = reduces_first() ? Phase::kReduce : Phase::kBackward;
  BRAID_RETURN_IF_ERROR(CheckBuffers(context.rank()));
  BRAID_RETURN_IF_ERROR(context.Measure(phase, [&] {
    const c10::AutoGradMode no_grad(false);
    if (reduces_first()) {
      RequestSumRanges(context);
      RequestNorms(context);
    } else {
      RequestReplicaRanges(context);
    }
    return context.scalars().Read(context.worker());
  }));
  BRAID_RETURN_IF_ERROR(context.Barrier());
  if (sum_may_overflow()) {
    BRAID_RETURN_IF_ERROR(CheckSums(context));
  }
  return Outcome().status();
}

absl::Status TrainStep::CheckBuffers(size_t rank) const {
  return ForEachReplica(rank, [](size_t, Stage& stage, size_t replica) {
    return replica == 0 ? stage.CheckBuffers() : absl::OkStatus();
  });
}

void TrainStep::RequestRange(const RankContext& context, const at::Tensor& gradients,
                             double* share) {
  const at::Tensor values = gradients.is_sparse() ? gradients._values() : gradients;
  if (values.numel() > 0) {
    context.scalars().AddRange(values,
                               [share, type = values.scalar_type()](double min, double max) {
                                 *share = std::max(*share, RangeShare(min, max, type));
                               });
  }
}

void TrainStep::RequestSumRanges(const RankContext& context) {
  const size_t rank = context.rank();
  for (size_t s = 0; !direct() && s < model_.stages.size(); ++s) {
    const Stage& stage = *model_.stages[s];
    const std::optional<size_t> replica = model_.ranks->replica[s][rank];
    if (replica && HasPart(stage, *replica)) {
      const Part part = PartOf(stage, *replica);
      for (const at::Tensor& flat : stage.flat(0).gradients()) {
        RequestRange(context, Cut(flat, SliceOf(flat, part.index, part.of)), &flat_shares_[rank]);
      }
    }
  }
}

void TrainStep::RequestReplicaRanges(const RankContext& context) {
  const size_t rank = context.rank();
  if (holds()) {
    for (const at::Tensor& gradient : passes_.front()->HeldBy(rank)) {
      RequestRange(context, gradient, &held_shares_[rank]);
    }
  }
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    if (const std::optional<size_t> replica = model_.ranks->replica[s][rank]) {
      for (const at::Tensor& flat : model_.stages[s]->flat(*replica).gradients()) {
        RequestRange(context, flat, &flat_shares_[rank]);
      }
    }
  }
}

void TrainStep::RequestNorms(const RankContext& context) {
  const ClippingSpec& clipping = model_.spec->clipping;
  const size_t rank = context.rank();
  for (size_t s = 0; clipping.max_norm && s < model_.stages.size(); ++s) {
    const Stage& stage = *model_.stages[s];
    const std::optional<size_t> replica = model_.ranks->replica[s][rank];
    if (replica && HasPart(stage, *replica)) {
      const Part part = PartOf(stage, *replica);
      double* const norm = &partial_norms_[rank * model_.stages.size() + s];
      context.scalars().Add(PartialNorm(stage.flat(0), clipping.norm_type, part.index, part.of),
                            [norm](double value) { *norm = value; });
    }
  }
}

bool TrainStep::finite() const {
  return std::isfinite(Total(flat_shares_) + Total(held_shares_)) && AllTrue(sum_finite_);
}

bool TrainStep::sum_may_overflow() const {
  const double share = Total(flat_shares_) + Total(held_shares_);
  return !reduces_first() && std::isfinite(share) && share > kSurelyFinite;
}

at::Tensor TrainStep::SumOf(size_t s, size_t buffer) const {
  const Stage& stage = *model_.stages[s];
  const at::Tensor& first = stage.flat(0).gradients()[buffer];
  at::Tensor sum = at::zeros_like(first);
  for (size_t r = 0; r < stage.size(); ++r) {
    sum.add_(stage.flat(r).gradients()[buffer].to(first.device()));
    const size_t chunks = holds() ? passes_.front()->chunks(s) : 0;
    for (size_t p = 0; r < chunks && p < stage.flat(0).slots().size(); ++p) {
      const FlatSlot& slot = stage.flat(0).slots()[p];
      const at::Tensor& held = passes_.front()->held(s)[r][p];
      if (slot.buffer == buffer && held.defined()) {
        sum.narrow(0, slot.offset, slot.numel).view(held.sizes()).add_(held.to(first.device()));
      }
    }
  }
  return sum;
}

absl::Status TrainStep::CheckSums(const RankContext& context) {
  const size_t rank = context.rank();
  BRAID_RETURN_IF_ERROR(ForEachReplica(rank, [&](size_t s, Stage& stage, size_t replica) {
    for (size_t b = 0; replica == 0 && b < stage.flat(0).gradients().size(); ++b) {
      const bool finite = std::isfinite(RangeShare(SumOf(s, b)));
      sum_finite_[rank] = sum_finite_[rank] && finite ? 1 : 0;
    }
    return absl::OkStatus();
  }));
  return context.Barrier();
}

double TrainStep::loss() const {
  double sum = 0;
  for (const auto& pass : passes_) {
    sum += pass->loss();
  }
  return sum;
}

absl::StatusOr<BatchOutcome> TrainStep::Outcome() const {
  BatchOutcome outcome;
  const double loss = this->loss();
  if (std::isfinite(loss) && finite()) {
    return outcome;
  }
  if (std::isfinite(loss) && model_.spec->precision == Precision::kFloat16) {
    outcome.overflow = true;
    return outcome;
  }
  if (model_.spec->non_finite == NonFinitePolicy::kFail) {
    return NotFiniteError(std::isfinite(loss) ? std::string("a gradient")
                                              : absl::StrCat("the loss (", loss, ")"));
  }
  outcome.counts = false;
  return outcome;
}

bool TrainStep::applies_update() const {
  const absl::StatusOr<BatchOutcome> outcome = Outcome();
  return updates() && outcome.ok() && outcome->counts && !outcome->overflow && !options_.overflowed;
}

void TrainStep::CommitBatch(size_t rank, bool counts) {
  if (counts && holds() && !direct()) {
    passes_.front()->Release(rank);
  }
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    Stage& stage = *model_.stages[s];
    const std::optional<size_t> replica = model_.ranks->replica[s][rank];
    if (replica == size_t{0} && stage.has_buffers()) {
      counts ? stage.CommitBuffers() : stage.ResetBuffers(0);
    }
    if (replica && !counts && !saved_.empty()) {
      stage.flat(*replica).RestoreGradients(saved_[s][*replica]);
    }
  }
}

absl::Status TrainStep::Apply(const RankContext& context) {
  BRAID_ASSIGN_OR_RETURN(const BatchOutcome outcome, Outcome());
  if (passes_.empty() && !applies_update()) {
    return absl::OkStatus();
  }
  changing_[context.rank()] = 1;
  if (!passes_.empty()) {
    CommitBatch(context.rank(), outcome.counts);
  }
  if (!applies_update()) {
    return absl::OkStatus();
  }
  if (!reduces_first()) {
    BRAID_RETURN_IF_ERROR(SyncForSum(context));
    BRAID_RETURN_IF_ERROR(Sum(context));
    if (model_.spec->clipping.max_norm) {
      RequestNorms(context);
      BRAID_RETURN_IF_ERROR(context.scalars().Read(context.worker()));
    }
    BRAID_RETURN_IF_ERROR(context.Barrier());
  }
  return UpdateParameters(context);
}

absl::Status TrainStep::UpdateParameters(const RankContext& context) {
  const c10::AutoGradMode no_grad(false);
  const ClippingSpec& clipping = model_.spec->clipping;
  double factor = 1 / options_.gradient_scale;
  if (clipping.max_norm) {
    const double norm = CombineNorms(partial_norms_, clipping.norm_type) * factor;
    factor *= ClipFactor(norm, *clipping.max_norm);
    if (context.rank() == model_.ranks->output_rank) {
      gradient_norm_ = norm;
    }
  }
  return context.Measure(Phase::kUpdate, [&] {
    return ForEachReplica(context.rank(), [&](size_t s, Stage& stage, size_t replica) {
      if (update_->all_reduce || HasPart(stage, replica)) {
        const size_t owner = update_->all_reduce ? replica : 0;
        UpdatePlan plan =
            stage.optimizer(owner).Plan(stage.Reached(HoldingAfter()[s]), update_->values);
        UpdateStage(stage, plan, replica, factor);
        if (replica == 0) {
          plans_[s] = std::move(plan);
        }
      }
      return absl::OkStatus();
    });
  });
}

void TrainStep::UpdateStage(Stage& stage, const UpdatePlan& plan, size_t replica,
                            double factor) const {
  // A replica updates all of its own parameters, or a part of the primary's.
  const size_t owner = update_->all_reduce ? replica : 0;
  const Part part = update_->all_reduce ? Part{} : PartOf(stage, replica);
  const std::optional<double> max_value = model_.spec->clipping.max_value;
  const FlatParameters& flat = stage.flat(owner);
  if (factor != 1 || max_value) {
    ScaleAndClip(flat, factor, max_value, part.index, part.of);
  }
  stage.optimizer(owner).Apply(flat, plan, part.index, part.of);
}

absl::Status TrainStep::Broadcast(const RankContext& context) {
  if (!applies_update() || update_->all_reduce) {
    return absl::OkStatus();
  }
  return context.Measure(Phase::kBroadcast, [&]() -> absl::Status {
    const c10::AutoGradMode no_grad(false);
    if (!AllShared(model_.stages)) {
      BRAID_RETURN_IF_ERROR(SyncForSum(context));
    }
    return ForEachReplica(context.rank(), [](size_t, Stage& stage, size_t replica) {
      return CopyParameters(stage, replica);
    });
  });
}

absl::Status TrainStep::CopyParameters(Stage& stage, size_t replica) {
  for (size_t b = 0; b < stage.flat(0).values().size(); ++b) {
    const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::values, b);
    if (stage.link() == Link::kCopies && replica > 0) {
      all[replica].copy_(all[0]);
    }
    if (stage.link() == Link::kSharedMemory && !stage.shares_parameters()) {
      const Slice slice = SliceOf(all[0], replica, all.size());
      for (size_t r = 1; r < all.size(); ++r) {
        Cut(all[r], slice).copy_(Cut(all[0], slice));
      }
    }
    if (stage.link() == Link::kNccl && replica == 0) {
      BRAID_RETURN_IF_ERROR(stage.communicator().Broadcast(all));
    }
  }
  return absl::OkStatus();
}

std::vector<size_t> TrainStep::HoldingAfter() const {
  // Fewer rows may be more chunks: 4 rows on 3 replicas are 2 and 2.
  std::vector<size_t> holding = options_.holding;
  for (const auto& pass : passes_) {
    for (size_t s = 0; s < model_.stages.size(); ++s) {
      holding[s] = std::max(holding[s], pass->chunks(s));
    }
  }
  return holding;
}

bool TrainStep::changing() const {
  return std::any_of(changing_.begin(), changing_.end(), [](char changing) { return changing; });
}

void TrainStep::WaitForReduces() {
  for (const auto& pass : passes_) {
    RunOnEach(model_.ranks->workers, Phase::kReduce, [&](size_t rank) {
      return pass->WaitForReduces(rank);
    }).IgnoreError();  // sums end before their memory is used again
  }
}

void TrainStep::RestoreGradients() {
  for (size_t s = 0; s < saved_.size(); ++s) {
    Stage& stage = *model_.stages[s];
    RunOnEach(stage.workers(), Phase::kBackward, [&](size_t r) {
      stage.flat(r).RestoreGradients(saved_[s][r]);
      return absl::OkStatus();
    }).IgnoreError();  // copies into memory that is allocated
  }
}

void TrainStep::CommitUpdate() {
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    const size_t updated = update_->all_reduce ? model_.stages[s]->size() : 1;
    for (size_t r = 0; r < updated; ++r) {
      model_.stages[s]->optimizer(r).Commit(plans_[s]);
    }
  }
}

}  // namespace braid
