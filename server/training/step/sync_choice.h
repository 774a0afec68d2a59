// Choice between all-reduce and reduce + broadcast, by measurement.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Owned by a DataParallel. Thread-compatible. Both ways give the same bits if the sums have the
// same order, so trying them changes only the time.
class SyncChoice {
 public:
  // `measure`: kAuto measures both ways; else it means all-reduce.
  SyncChoice(SyncMode mode, bool measure) : mode_(mode), measure_(measure) {}

  // Returns whether the next update uses all-reduce.
  bool all_reduce() const;
  // Records that the update for which all_reduce() was called took `time`.
  void Record(absl::Duration time);

 private:
  bool measuring() const { return mode_ == SyncMode::kAuto && measure_; }

  SyncMode mode_;
  bool measure_;
  int64_t updates_ = 0;
  // The shortest time of each way, by all_reduce(): longer times were disturbed.
  std::array<absl::Duration, 2> shortest_ = {absl::InfiniteDuration(), absl::InfiniteDuration()};
};

}  // namespace braid
