// Request and batch counters of one model version since it was loaded.
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

// Durations of the stages of one batch.
struct BatchDurations {
  absl::Duration copy_in;
  absl::Duration forward;
  absl::Duration copy_out;

  absl::Duration total() const { return copy_in + forward + copy_out; }
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
    // Start of the last batch; InfinitePast if there was none.
    absl::Time last_inference = absl::InfinitePast();
    // Rows of successful requests.
    int64_t rows = 0;
    int64_t batches = 0;
    // Requests, with their time from arrival to reply.
    DurationCount success;
    DurationCount failure;
    // Successful requests: time until the first rows were taken, without decoding, and durations of
    // the batches that contained their rows (the full duration of each batch). Decoding counts as
    // copy_in.
    DurationCount queue;
    Batches request;
    // Keyed by the rows of a batch.
    std::map<int64_t, Batches> by_rows;
  };

  // Counts a batch that has run.
  void RecordBatch(int64_t rows, absl::Time start, const BatchDurations& durations)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a successful request. durations: sum over its batches.
  void RecordSuccess(int64_t rows, absl::Duration total, absl::Duration queued,
                     const BatchDurations& durations) ABSL_LOCKS_EXCLUDED(mu_);
  void RecordFailure(absl::Duration total) ABSL_LOCKS_EXCLUDED(mu_);
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
