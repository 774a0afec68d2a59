// What one version of a model has done since it was loaded.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace braid {

struct DurationCount {
  int64_t count = 0;
  absl::Duration total;

  void Add(absl::Duration duration) {
    ++count;
    total += duration;
  }
};

// Of a batch's forward pass.
struct BatchDurations {
  absl::Duration copy_in;
  absl::Duration forward;
  absl::Duration copy_out;

  BatchDurations& operator+=(const BatchDurations& other) {
    copy_in += other.copy_in;
    forward += other.forward;
    copy_out += other.copy_out;
    return *this;
  }
};

// Thread-safe.
class ModelStatistics {
 public:
  struct Batches {
    DurationCount copy_in;
    DurationCount forward;
    DurationCount copy_out;

    void Add(const BatchDurations& durations) {
      copy_in.Add(durations.copy_in);
      forward.Add(durations.forward);
      copy_out.Add(durations.copy_out);
    }
  };
  struct Counts {
    // When the last inference began; InfinitePast: there was none.
    absl::Time last_inference = absl::InfinitePast();
    // Of requests that succeeded.
    int64_t rows = 0;
    int64_t batches = 0;
    // Of requests, from their arrival to their answer.
    DurationCount success;
    DurationCount failure;
    // Of requests that succeeded, the time until the first of their rows was taken; and that of the
    // batches that they were in, each batch's whole time.
    DurationCount queue;
    Batches request;
    // By the rows of a batch.
    std::map<int64_t, Batches> by_rows;
  };

  // A batch of `rows` rows has run.
  void RecordBatch(int64_t rows, absl::Time start, const BatchDurations& durations)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A request of `rows` rows has been answered; `durations`: of all its batches.
  void RecordSuccess(int64_t rows, absl::Duration total, absl::Duration queued,
                     const BatchDurations& durations) ABSL_LOCKS_EXCLUDED(mu_);
  void RecordFailure(absl::Duration total) ABSL_LOCKS_EXCLUDED(mu_);
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
