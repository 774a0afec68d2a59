// Resources of the ranks of one operation: barrier, phase times, staging memory, and scalars that
// are copied to the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/devices/staging.h"
#include "server/devices/worker_group.h"
#include "server/telemetry/phase.h"
#include "server/training/step/device_scalars.h"

namespace braid {

// Time of each rank of an operation in each phase. Each rank writes its own row only.
class PhaseTimes {
 public:
  explicit PhaseTimes(size_t ranks) : times_(ranks) {}

  absl::Duration* mutable_time(size_t rank, Phase phase) {
    return &times_[rank][static_cast<size_t>(phase)];
  }

  // Returns the longest time of any rank.
  absl::Duration longest(Phase phase) const {
    absl::Duration longest;
    for (const auto& rank : times_) {
      longest = std::max(longest, rank[static_cast<size_t>(phase)]);
    }
    return longest;
  }
  // Returns the load imbalance of `ranks`, 1 - mean / max of their forward plus backward time.
  // nullopt for fewer than two ranks or no measured time.
  std::optional<double> imbalance(const std::vector<size_t>& ranks) const {
    absl::Duration sum;
    absl::Duration longest;
    for (const size_t rank : ranks) {
      const absl::Duration time = times_[rank][static_cast<size_t>(Phase::kForward)] +
                                  times_[rank][static_cast<size_t>(Phase::kBackward)];
      sum += time;
      longest = std::max(longest, time);
    }
    if (ranks.size() < 2 || longest == absl::ZeroDuration()) {
      return std::nullopt;
    }
    return 1 - absl::FDivDuration(sum, longest) / static_cast<double>(ranks.size());
  }

 private:
  std::vector<std::array<absl::Duration, kPhases>> times_;
};

// One rank of an operation. Used on the rank's worker.
class RankContext {
 public:
  RankContext(WorkerGroup& group, size_t rank, PhaseTimes& times, Staging& staging,
              DeviceScalars& scalars)
      : group_(group), rank_(rank), times_(times), staging_(staging), scalars_(scalars) {}

  size_t rank() const { return rank_; }
  WorkerGroup& group() const { return group_; }
  Worker& worker() const { return group_.worker(rank_); }
  // Host memory for copies to the rank's device; lives until the operation has ended.
  Staging& staging() const { return staging_; }
  // Numbers that are copied from the rank's device to the host.
  DeviceScalars& scalars() const { return scalars_; }

  // Waits until all ranks have reached the barrier.
  absl::Status Barrier() const { return group_.Barrier(rank_); }
  // Runs `work` and adds its time to `phase`. The time is complete when the operation has ended.
  template <typename Work>
  auto Measure(Phase phase, Work work) const {
    return worker().Measure(phase, work, times_.mutable_time(rank_, phase));
  }

 private:
  WorkerGroup& group_;
  const size_t rank_;
  PhaseTimes& times_;
  Staging& staging_;
  DeviceScalars& scalars_;
};

// The ranks of one operation: their phase times, staging memory and numbers. Owned by the thread
// that runs the operation.
class RankExecution {
 public:
  // `workers` outlive the object.
  explicit RankExecution(const std::vector<Worker*>& workers);

  // Runs `work` for every rank on its worker at the same time, and waits for all. Synchronizes each
  // rank's device after `work` returns. `groups`: see WorkerGroup. Returns the first error.
  absl::Status OnEachRank(const std::vector<RankGroup>& groups,
                          absl::FunctionRef<absl::Status(const RankContext&)> work);

  const PhaseTimes& times() const { return times_; }

 private:
  const std::vector<Worker*>& workers_;
  PhaseTimes times_;
  // By rank. Freed once the devices are synchronized.
  std::vector<std::unique_ptr<Staging>> staging_;
  std::vector<DeviceScalars> scalars_;
};

}  // namespace braid
