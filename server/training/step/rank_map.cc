#include "server/training/step/rank_map.h"

#include <algorithm>

namespace braid {
namespace {

size_t RankOf(std::vector<Worker*>* workers, Worker* worker) {
  const auto found = std::find(workers->begin(), workers->end(), worker);
  const auto rank = static_cast<size_t>(found - workers->begin());
  if (found == workers->end()) {
    workers->push_back(worker);
  }
  return rank;
}

}  // namespace

RankMap::RankMap(const Placement& placement) : output_device(placement.output_device) {
  for (const PlacedStage& stage : placement.stages) {
    std::vector<size_t>& ranks = rank.emplace_back();
    for (Worker* worker : stage.replicas.workers()) {
      ranks.push_back(RankOf(&workers, worker));
    }
  }
  for (size_t r = 0; r < workers.size(); ++r) {
    computing.push_back(r);
  }
  output_rank = RankOf(&workers, placement.output_worker);
  for (const std::vector<size_t>& ranks : rank) {
    std::vector<std::optional<size_t>>& replicas = replica.emplace_back(workers.size());
    for (size_t r = 0; r < ranks.size(); ++r) {
      replicas[ranks[r]] = r;
    }
  }
}

}  // namespace braid
