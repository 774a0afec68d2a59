// Of DataParallel: whether what an operation computed may be applied.
#include <algorithm>
#include <cmath>

#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/parallel/finite.h"
#include "server/parallel/host_copy.h"
#include "server/training/step/data_parallel.h"
#include "server/training/step/data_parallel_run.h"

namespace braid {
namespace {

absl::Status NotFinite(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " is not finite: the batch was left out and nothing has changed; lower the "
                   "learning rate, clip the gradients, or have such batches skipped "
                   "(non_finite)"));
}

}  // namespace

absl::Status DataParallel::Examine(Run& run, WorkerGroup& worker_group, size_t rank) {
  if (run.direct) {
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
    return run.times.Measure(worker_group, rank, Phase::kReduce, [&] {
      run.sum_finite[rank] = run.update->SumHeld(*run.passes.front(), rank) ? 1 : 0;
      return CheckBuffers(rank);
    });
  }
  return run.times.Measure(worker_group, rank, Phase::kBackward, [&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(CheckBuffers(rank));
    const double held = run.hold ? run.passes.front()->HeldShare(rank) : 0;
    double flat = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const std::optional<size_t> replica = roster_.replica[s][rank];
      // Where they have been summed, the primary's are all.
      if (!replica || (run.summed(s) && replica != size_t{0})) {
        continue;
      }
      for (const at::Tensor& gradients : stages_[s]->flat(*replica).gradients()) {
        flat = std::max(flat, RangeShare(gradients));
      }
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (const std::optional<size_t> replica = roster_.replica[s][rank]) {
        BRAID_RETURN_IF_ERROR(stages_[s]->MarkReady(*replica));
      }
    }
    run.shares[rank] = held + flat;
    return absl::OkStatus();
  });
}

absl::Status DataParallel::CheckBuffers(size_t rank) const {
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (roster_.replica[s][rank] == size_t{0}) {
      BRAID_RETURN_IF_ERROR(stages_[s]->CheckBuffers());
    }
  }
  return absl::OkStatus();
}

absl::Status DataParallel::ExamineBuffers(Run& run, WorkerGroup& worker_group, size_t rank,
                                          bool keep_earlier) {
  BRAID_RETURN_IF_ERROR(CheckBuffers(rank));
  const auto primary = [&](size_t s) { return roster_.replica[s][rank] == size_t{0}; };
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (primary(s) && !stages_[s]->BuffersStayFinite()) {
      run.buffers_finite[rank] = 0;
    }
    if (primary(s) && keep_earlier) {
      stages_[s]->KeepEarlierBuffers();
    }
  }
  BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  if (!run.buffers_stay_finite()) {
    return spec_.non_finite == NonFinitePolicy::kFail
               ? NotFinite("what the model keeps of the batch (a buffer)")
               : absl::OkStatus();
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (primary(s) && stages_[s]->has_buffers()) {
      stages_[s]->CommitBuffers();
    }
  }
  return absl::OkStatus();
}

absl::Status DataParallel::JudgeOutputGradients(
    const std::vector<HostTensor>& output_gradients) const {
  // Of float16 it is an overflow, which lowers the scale.
  const bool fails =
      spec_.non_finite == NonFinitePolicy::kFail && spec_.precision != Precision::kFloat16;
  for (size_t i = 0; fails && i < output_gradients.size(); ++i) {
    if (!std::isfinite(RangeShare(View(output_gradients[i])))) {
      return NotFinite(absl::StrCat("output_gradients[", i, "]"));
    }
  }
  return absl::OkStatus();
}

at::Tensor DataParallel::SumOf(const Run& run, size_t s, size_t buffer) const {
  const Stage& stage = *stages_[s];
  const at::Tensor& first = stage.flat(0).gradients()[buffer];
  at::Tensor sum = at::zeros_like(first);
  for (size_t r = 0; r < (run.summed(s) ? 1 : stage.size()); ++r) {
    sum.add_(stage.flat(r).gradients()[buffer].to(first.device()));
    const size_t chunks = run.hold ? run.passes.front()->chunks(s) : 0;
    for (size_t p = 0; r < chunks && p < stage.flat(0).slots().size(); ++p) {
      const FlatSlot& slot = stage.flat(0).slots()[p];
      const at::Tensor& held = run.passes.front()->held(s)[r][p];
      if (slot.buffer == buffer && held.defined()) {
        sum.narrow(0, slot.offset, slot.numel).view(held.sizes()).add_(held.to(first.device()));
      }
    }
  }
  return sum;
}

absl::Status DataParallel::ExamineSum(Run& run, WorkerGroup& worker_group, size_t rank) {
  BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  if (!run.doubtful()) {
    return absl::OkStatus();
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (size_t b = 0;
         roster_.replica[s][rank] == size_t{0} && b < stages_[s]->flat(0).gradients().size(); ++b) {
      const bool finite = std::isfinite(RangeShare(SumOf(run, s, b)));
      run.sum_finite[rank] = run.sum_finite[rank] && finite ? 1 : 0;
    }
  }
  return worker_group.Barrier(rank);
}

absl::StatusOr<DataParallel::Verdict> DataParallel::Judge(const Run& run) const {
  Verdict verdict;
  const bool finite = run.finite();
  const double loss = run.loss();
  if (std::isfinite(loss) && finite) {
    return verdict;
  }
  if (std::isfinite(loss) && spec_.precision == Precision::kFloat16) {
    verdict.overflow = true;
    return verdict;
  }
  if (spec_.non_finite == NonFinitePolicy::kFail) {
    return NotFinite(std::isfinite(loss) ? std::string("a gradient")
                                         : absl::StrCat("the loss (", loss, ")"));
  }
  verdict.counts = false;
  return verdict;
}

}  // namespace braid
