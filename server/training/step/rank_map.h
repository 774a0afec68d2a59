// The workers that train a model together, and which replica of which stage each has.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "c10/core/Device.h"
#include "server/devices/worker.h"
#include "server/training/step/placement.h"

namespace braid {

struct RankMap {
  explicit RankMap(const Placement& placement);

  // By rank. A worker with replicas of several stages is there once.
  std::vector<Worker*> workers;
  // replica[stage][rank]; rank[stage][replica].
  std::vector<std::vector<std::optional<size_t>>> replica;
  std::vector<std::vector<size_t>> rank;
  // The ranks that have a replica.
  std::vector<size_t> computing;
  // Who gathers outputs and computes the loss, and where.
  size_t output_rank = 0;
  c10::Device output_device;
};

}  // namespace braid
