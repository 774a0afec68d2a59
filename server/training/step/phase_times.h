// How long each rank of a worker group spent on each phase of an operation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "server/devices/worker_group.h"
#include "server/telemetry/phase.h"

namespace braid {

// Each rank writes its own row only.
class PhaseTimes {
 public:
  explicit PhaseTimes(size_t ranks) : times_(ranks) {}

  // Runs `work` as `rank` on its worker, and counts its time for both, by the end of the rank's
  // run.
  template <typename Work>
  auto Measure(WorkerGroup& worker_group, size_t rank, Phase phase, Work work) {
    return worker_group.worker(rank).Measure(phase, work,
                                             &times_[rank][static_cast<size_t>(phase)]);
  }

  // The longest of the ranks'.
  absl::Duration longest(Phase phase) const {
    absl::Duration most;
    for (const auto& rank : times_) {
      most = std::max(most, rank[static_cast<size_t>(phase)]);
    }
    return most;
  }
  // 1 - mean / maximum of what each of `ranks` spent on forward and backward; nullopt if there is
  // nothing to compare.
  std::optional<double> imbalance(const std::vector<size_t>& ranks) const {
    absl::Duration sum;
    absl::Duration most;
    for (const size_t rank : ranks) {
      const absl::Duration time = times_[rank][static_cast<size_t>(Phase::kForward)] +
                                  times_[rank][static_cast<size_t>(Phase::kBackward)];
      sum += time;
      most = std::max(most, time);
    }
    if (ranks.size() < 2 || most == absl::ZeroDuration()) {
      return std::nullopt;
    }
    return 1 - absl::FDivDuration(sum, most) / static_cast<double>(ranks.size());
  }

 private:
  std::vector<std::array<absl::Duration, kPhases>> times_;
};

}  // namespace braid
