// Who goes first when batches and tasks both wait for a worker.
#pragma once

#include "absl/time/time.h"

namespace braid {

enum class WorkKind { kTask, kBatch };

// Batches go first; while they keep tasks waiting, the tasks earn credit, `task_share` of the time
// that both want, and go first while they have some. Thread-compatible.
class WorkShare {
 public:
  // `task_share` in [0, 1).
  explicit WorkShare(double task_share) : credit_rate_(task_share / (1 - task_share)) {}

  // Whose turn it is, where both wait.
  WorkKind Choose() const {
    return credit_ > absl::ZeroDuration() ? WorkKind::kTask : WorkKind::kBatch;
  }
  // A batch took `time`; `task_waited` meanwhile.
  void RecordBatch(absl::Duration time, bool task_waited) {
    credit_ = task_waited ? credit_ + time * credit_rate_ : absl::ZeroDuration();
  }
  // A task took `time`; it went first by its credit, or else because there was no batch.
  void RecordTask(absl::Duration time, bool by_credit) {
    credit_ = by_credit ? credit_ - time : absl::ZeroDuration();
  }

 private:
  const double credit_rate_;
  absl::Duration credit_;
};

}  // namespace braid
