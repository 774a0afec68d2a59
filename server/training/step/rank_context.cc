#include "server/training/step/rank_context.h"

namespace braid {

RankExecution::RankExecution(const std::vector<Worker*>& workers)
    : workers_(workers), times_(workers.size()) {
  for (const Worker* worker : workers_) {
    staging_.push_back(std::make_unique<Staging>(worker->device()));
    scalars_.emplace_back(*staging_.back());
  }
}

absl::Status RankExecution::OnEachRank(const std::vector<RankGroup>& groups,
                                       absl::FunctionRef<absl::Status(const RankContext&)> work) {
  return RunWorkerGroup(workers_, groups, [&](WorkerGroup& group, size_t rank) {
    return work(RankContext(group, rank, times_, *staging_[rank], scalars_[rank]));
  });
}

}  // namespace braid
