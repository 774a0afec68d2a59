// Comparison of a replay of a trainer's steps with what was recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace braid {

// The steps to compare, inclusive.
struct ReplayRange {
  std::optional<int64_t> first_step;  // at least 1; nullopt: the earliest that can be recomputed
  std::optional<int64_t> last_step;   // nullopt: the last recorded one
};

struct ReplayDifference {
  int64_t sequence = 0;
  int64_t step = 0;
  std::string checkpoint;  // name of the one that differs; empty: the results differ
  std::string batch_id;
  std::string recorded;
  std::string replayed;
};

struct ReplayReport {
  int64_t first_step = 0;  // of those that were compared
  int64_t last_step = 0;
  int64_t operations = 0;   // compared
  int64_t checkpoints = 0;  // compared
  std::optional<ReplayDifference> difference;
  // Descriptions of the processes.
  std::string recorded_with;
  std::string replayed_with;
};

}  // namespace braid
