// Which way of synchronizing the replicas is the faster one here.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "server/training/trainer_spec.h"

namespace braid {

// Thread-compatible. Both ways give the same bits where the order of the sums is the same, so that
// trying them changes nothing but the time.
class SyncChoice {
 public:
  // `measure`: kAuto is to be measured; else it stands for all-reduce.
  SyncChoice(SyncMode mode, bool measure) : mode_(mode), measure_(measure) {}

  // For the next update.
  bool all_reduce() const;
  // The update that all_reduce() was asked for took `time`.
  void Record(absl::Duration time);

 private:
  bool measuring() const { return mode_ == SyncMode::kAuto && measure_; }

  SyncMode mode_;
  bool measure_;
  int64_t updates_ = 0;
  // The shortest of each, by all_reduce(): what disturbed the others does not count.
  std::array<absl::Duration, 2> shortest_ = {absl::InfiniteDuration(), absl::InfiniteDuration()};
};

}  // namespace braid
