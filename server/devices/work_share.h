// Choice between batches and tasks when both wait for a worker.
#pragma once

#include "absl/time/time.h"

namespace braid {

enum class WorkKind { kTask, kBatch };

// Batches go first. While they keep tasks waiting, tasks earn credit at the rate `task_share`, and
// go first while they have credit. Thread-compatible.
class WorkShare {
 public:
  // `task_share` in [0, 1).
  explicit WorkShare(double task_share) : credit_rate_(task_share / (1 - task_share)) {}

  // Returns which kind goes first when both wait.
  WorkKind Choose() const {
    return credit_ > absl::ZeroDuration() ? WorkKind::kTask : WorkKind::kBatch;
  }
  // Records that a batch took `time`. `task_waited` is true if a task was waiting.
  void RecordBatch(absl::Duration time, bool task_waited) {
    credit_ = task_waited ? credit_ + time * credit_rate_ : absl::ZeroDuration();
  }
  // Records that a task took `time`. `by_credit` is false if it ran because no batch was waiting.
  void RecordTask(absl::Duration time, bool by_credit) {
    credit_ = by_credit ? credit_ - time : absl::ZeroDuration();
  }

 private:
  const double credit_rate_;
  absl::Duration credit_;
};

}  // namespace braid
