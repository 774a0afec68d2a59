// Of data_parallel*.cc alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "server/parallel/overlapped_reduce.h"
#include "server/training/step/data_parallel.h"

namespace braid {

// One operation on its way through a worker group.
struct DataParallel::Run {
  Run(const DataParallel& trained, const Batch& worked_on)
      : batch(worked_on),
        times(trained.roster_.workers.size()),
        shares(trained.roster_.workers.size(), 0),
        sum_finite(trained.roster_.workers.size(), 1),
        buffers_finite(trained.roster_.workers.size(), 1),
        changing(trained.roster_.workers.size(), 0) {
    batch.gradient_scale = trained.gradient_scale();
  }

  void AddPass(std::unique_ptr<BatchPass> pass) {
    passes.push_back(std::move(pass));
    for (RankGroup& group : passes.back()->RankGroups()) {
      groups.push_back(std::move(group));
    }
  }
  void AddPasses(const DataParallel& trained) {
    int64_t start = 0;
    for (const int64_t rows : trained.Pieces(batch.rows)) {
      AddPass(std::make_unique<BatchPass>(trained.model(), batch, start, rows, groups.size()));
      start += rows;
    }
  }

  bool summed(size_t stage) const { return !reduces.empty() && reduces[stage] != nullptr; }

  double loss() const {
    double sum = 0;
    for (const auto& pass : passes) {
      sum += pass->loss();
    }
    return sum;
  }

  Batch batch;  // the passes refer to it
  std::vector<std::unique_ptr<BatchPass>> passes;
  std::vector<RankGroup> groups;
  // What the losses divide by over the whole batch; the output rank writes it.
  std::vector<double> whole;
  // The gradients are kept apart until it is known that they count.
  bool hold = false;
  // They are summed right into the primary's flat gradients, for the update of this run.
  bool direct = false;
  // The flat gradients as they were, by stage and replica, where they cannot be kept apart.
  std::vector<std::vector<SavedGradients>> saved;
  std::unique_ptr<UpdatePass> update;
  // By stage: of those whose gradients are summed during the backward pass.
  std::vector<std::unique_ptr<OverlappedReduce>> reduces;
  PhaseTimes times;
  // No replica's gradients are infinite, but their sum may be.
  bool doubtful() const {
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    return std::isfinite(sum) && sum > kSurelyFinite;
  }
  bool finite() const {
    return std::isfinite(std::accumulate(shares.begin(), shares.end(), 0.0)) &&
           std::all_of(sum_finite.begin(), sum_finite.end(), [](char finite) { return finite; });
  }

  bool buffers_stay_finite() const {
    return std::all_of(buffers_finite.begin(), buffers_finite.end(),
                       [](char finite) { return finite; });
  }

  // Sums are rounded.
  static constexpr double kSurelyFinite = 0.99;

  // By rank; each writes its own. RangeShare() of its gradients, the accumulated ones included.
  std::vector<double> shares;
  // Where that leaves a doubt: whether the sum over the replicas is finite.
  std::vector<char> sum_finite;
  // Whether the buffers of which it has the primary's are, where they were before.
  std::vector<char> buffers_finite;
  // It has begun to change what the trainer is.
  std::vector<char> changing;
};

}  // namespace braid
