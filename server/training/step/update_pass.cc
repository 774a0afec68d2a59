#include "server/training/step/update_pass.h"

#include <algorithm>
#include <utility>

#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/parallel/flat_slice.h"
#include "server/parallel/sum_gradients.h"
#include "server/training/step/clipping.h"

namespace braid {
namespace {

// The part of a stage's flat buffers that a replica's worker sums, and updates where one update is
// made for all: slices of it where all workers reach the memory, else all by the primary's.
struct Part {
  size_t index = 0;
  size_t of = 1;
};

bool HasPart(const Stage& stage, size_t replica) {
  return replica == 0 || stage.link() == Link::kSharedMemory;
}

Part PartOf(const Stage& stage, size_t replica) {
  return stage.link() == Link::kSharedMemory ? Part{replica, stage.size()} : Part{};
}

bool AnyCopies(const std::vector<Stage*>& stages) {
  return std::any_of(stages.begin(), stages.end(), [](const Stage* stage) {
    return stage->link() == Link::kCopies && stage->size() > 1;
  });
}

bool AllShared(const std::vector<Stage*>& stages) {
  return std::all_of(stages.begin(), stages.end(),
                     [](const Stage* stage) { return stage->link() == Link::kSharedMemory; });
}

at::Tensor Cut(const at::Tensor& flat, const Slice& slice) {
  return flat.narrow(0, slice.begin, slice.end - slice.begin);
}

}  // namespace

UpdatePass::UpdatePass(const TrainedModel& model, std::vector<size_t> replicas,
                       std::vector<GroupValues> values, double gradient_scale, bool all_reduce)
    : model_(model),
      replicas_(std::move(replicas)),
      values_(std::move(values)),
      gradient_scale_(gradient_scale),
      all_reduce_(all_reduce),
      summed_(model_.roster->workers.size()),
      reduced_(model_.stages.size()),
      plans_(model_.stages.size()),
      partial_norms_(model_.roster->workers.size() * model_.stages.size()) {}

template <typename Work>
absl::Status UpdatePass::ForMine(size_t rank, Work work) const {
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    if (const std::optional<size_t> replica = model_.roster->replica[s][rank]) {
      BRAID_RETURN_IF_ERROR(work(s, *model_.stages[s], *replica));
    }
  }
  return absl::OkStatus();
}

void UpdatePass::SumSlices(size_t s, size_t replica) const {
  Stage& stage = *model_.stages[s];
  for (size_t b = 0; b < stage.flat(0).gradients().size(); ++b) {
    const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::gradients, b);
    const Slice slice = SliceOf(all[0], replica, stage.size());
    const at::Tensor sum = Cut(all[0], slice);
    for (size_t r = 1; r < replicas_[s]; ++r) {
      sum.add_(Cut(all[r], slice));
    }
    CopySum(all, slice);
  }
}

void UpdatePass::CopySum(const std::vector<at::Tensor>& gradients, const Slice& slice) const {
  for (size_t r = 1; all_reduce_ && r < gradients.size(); ++r) {
    Cut(gradients[r], slice).copy_(Cut(gradients[0], slice));
  }
}

bool UpdatePass::SumHeld(const BatchPass& pass, size_t rank) {
  const c10::AutoGradMode no_grad(false);
  bool finite = true;
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    const std::optional<size_t> replica = model_.roster->replica[s][rank];
    Stage& stage = *model_.stages[s];
    for (size_t b = 0; replica && b < stage.flat(0).gradients().size(); ++b) {
      const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::gradients, b);
      const Slice slice = SliceOf(all[0], *replica, stage.size());
      finite = SumGradients(pass.held(s), stage.flat(0), b, slice) && finite;
      CopySum(all, slice);
    }
  }
  summed_[rank] = 1;
  return finite;
}

absl::Status UpdatePass::Reduce(size_t s, size_t replica) {
  Stage& stage = *model_.stages[s];
  if (reduced_[s]) {
    return absl::OkStatus();
  }
  if (stage.link() == Link::kSharedMemory) {
    SumSlices(s, replica);
    return absl::OkStatus();
  }
  for (size_t b = 0; replica == 0 && b < stage.flat(0).gradients().size(); ++b) {
    const std::vector<at::Tensor> all = stage.OfAll(&FlatParameters::gradients, b);
    if (stage.link() == Link::kNccl) {
      BRAID_RETURN_IF_ERROR(all_reduce_ ? stage.communicator().AllReduce(all)
                                        : stage.communicator().Reduce(all));
      continue;
    }
    for (size_t r = 1; r < replicas_[s]; ++r) {
      all[0].add_(all[r].to(all[0].device()));
    }
  }
  return absl::OkStatus();
}

absl::Status UpdatePass::ShareSums(WorkerGroup& worker_group, size_t rank) {
  BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  if (!AnyCopies(model_.stages)) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(ForMine(rank, [](size_t, Stage& stage, size_t replica) {
    for (size_t b = 0;
         stage.link() == Link::kCopies && replica > 0 && b < stage.flat(0).gradients().size();
         ++b) {
      stage.flat(replica).gradients()[b].copy_(stage.flat(0).gradients()[b]);
    }
    return absl::OkStatus();
  }));
  return worker_group.Barrier(rank);
}

absl::StatusOr<double> UpdatePass::ClipByNorm(WorkerGroup& worker_group, size_t rank) {
  const ClippingSpec& clipping = model_.spec->clipping;
  const double unscale = 1 / gradient_scale_;
  if (!clipping.max_norm) {
    return unscale;
  }
  // Every rank measures its part, whoever updates: the same parts give the same bits.
  BRAID_RETURN_IF_ERROR(ForMine(rank, [&](size_t s, Stage& stage, size_t replica) {
    if (HasPart(stage, replica)) {
      const Part part = PartOf(stage, replica);
      partial_norms_[rank * model_.stages.size() + s] =
          PartialNorm(stage.flat(0), clipping.norm_type, part.index, part.of);
    }
    return absl::OkStatus();
  }));
  BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  const double norm = CombineNorms(partial_norms_, clipping.norm_type) * unscale;
  if (rank == model_.roster->output_rank) {
    gradient_norm_ = norm;
  }
  return unscale * ClipFactor(norm, *clipping.max_norm);
}

void UpdatePass::Update(Stage& stage, const UpdatePlan& plan, size_t replica, double factor) {
  // Of its own gradients with its own optimizer, or a part of the primary's.
  const size_t owner = all_reduce_ ? replica : 0;
  const Part part = all_reduce_ ? Part{} : PartOf(stage, replica);
  const std::optional<double> max_value = model_.spec->clipping.max_value;
  const FlatParameters& flat = stage.flat(owner);
  if (factor != 1 || max_value) {
    ScaleAndClip(flat, factor, max_value, part.index, part.of);
  }
  stage.optimizer(owner).Apply(flat, plan, part.index, part.of);
}

absl::Status UpdatePass::ShareParameters(WorkerGroup& worker_group, size_t rank) {
  const auto copy = [](size_t, Stage& stage, size_t replica) {
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
  };
  BRAID_RETURN_IF_ERROR(
      ForMine(rank, [](size_t, Stage& stage, size_t replica) { return stage.MarkReady(replica); }));
  if (!AllShared(model_.stages)) {
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  }
  return ForMine(rank, copy);
}

absl::Status UpdatePass::Sum(WorkerGroup& worker_group, size_t rank, PhaseTimes* times) {
  const c10::AutoGradMode no_grad(false);
  summed_[rank] = 1;
  return times->Measure(worker_group, rank, Phase::kReduce, [&] {
    return ForMine(rank, [&](size_t s, Stage&, size_t replica) { return Reduce(s, replica); });
  });
}

absl::Status UpdatePass::Run(WorkerGroup& worker_group, size_t rank, PhaseTimes* times) {
  const c10::AutoGradMode no_grad(false);
  if (!summed_[rank]) {
    BRAID_RETURN_IF_ERROR(Sum(worker_group, rank, times));
  }
  if (all_reduce_) {
    BRAID_RETURN_IF_ERROR(ShareSums(worker_group, rank));
  }
  BRAID_ASSIGN_OR_RETURN(const double factor, ClipByNorm(worker_group, rank));
  if (model_.spec->clipping.max_norm) {
    // The parts that others measure are read before they are scaled.
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  }
  BRAID_RETURN_IF_ERROR(times->Measure(worker_group, rank, Phase::kUpdate, [&] {
    return ForMine(rank, [&](size_t s, Stage& stage, size_t replica) {
      if (all_reduce_ || HasPart(stage, replica)) {
        UpdatePlan plan =
            stage.optimizer(all_reduce_ ? replica : 0).Plan(stage.Reached(replicas_[s]), values_);
        Update(stage, plan, replica, factor);
        if (replica == 0) {
          plans_[s] = std::move(plan);
        }
      }
      return absl::OkStatus();
    });
  }));
  if (all_reduce_) {
    return absl::OkStatus();
  }
  return times->Measure(worker_group, rank, Phase::kBroadcast,
                        [&] { return ShareParameters(worker_group, rank); });
}

void UpdatePass::Commit() {
  for (size_t s = 0; s < model_.stages.size(); ++s) {
    const size_t updated = all_reduce_ ? model_.stages[s]->size() : 1;
    for (size_t r = 0; r < updated; ++r) {
      model_.stages[s]->optimizer(r).Commit(plans_[s]);
    }
  }
}

}  // namespace braid
