// The workers that train a model together, and the replicas of the stages on each.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "c10/core/Device.h"
#include "server/devices/worker.h"
#include "server/training/step/placement.h"

namespace braid {

// Owned by a DataParallel. Immutable after construction.
struct RankMap {
  explicit RankMap(const Placement& placement);

  // By rank. A worker with replicas of several stages has one rank.
  std::vector<Worker*> workers;
  // replica[stage][rank]; rank[stage][replica].
  std::vector<std::vector<std::optional<size_t>>> replica;
  std::vector<std::vector<size_t>> rank;
  // The ranks that have a replica.
  std::vector<size_t> computing;
  // Rank and device that gather the outputs and compute the loss.
  size_t output_rank = 0;
  c10::Device output_device;
};

}  // namespace braid
