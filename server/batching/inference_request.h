// One inference request, from admission to reply.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/batching/model_statistics.h"

namespace braid {

// Rows of a request that ran in one batch on one device.
struct ChunkReport {
  std::string device;
  int64_t rows = 0;
};

struct InferenceResult {
  // In the order of the model's outputs.
  std::vector<GatheredTensor> outputs;
  int64_t version = 0;
  std::vector<ChunkReport> chunks;
  // Sum over all batches that contained rows of the request.
  BatchDurations durations;
  // Time for decoding the inputs, time that the request waited for that and for a worker, and time
  // from when a worker took the first rows.
  absl::Duration decoded;
  absl::Duration queued;
  absl::Duration computed;
};

// Thread-safe. Several workers may run different rows at the same time. Owned by shared pointers of
// its queue and of the batches that contain its rows.
class InferenceRequest {
 public:
  // Called once, by the thread that completes the request; must not block. The inputs are not read
  // afterwards.
  using Done = absl::AnyInvocable<void(absl::StatusOr<InferenceResult>)>;

  // Position in a queue: index of the priority level, and a sequence number within that level.
  struct Place {
    size_t level = 0;
    int64_t number = 0;
  };

  // The queue that holds the request. Called without the request's lock.
  class Queue {
   public:
    virtual ~Queue() = default;
    // Removes the rows that still wait.
    virtual void Remove(const InferenceRequest& request) = 0;
    // Delivers the result of a completed request to `done`.
    virtual void Complete(const InferenceRequest& request, Done done,
                          absl::StatusOr<InferenceResult> result) = 0;
  };

  // Determines the position in the queue.
  struct Schedule {
    absl::Time arrival;
    // The request is not started after this time.
    absl::Time deadline = absl::InfiniteFuture();
    // 1 (most urgent) to the model's priority_levels. 0: the model's default.
    int64_t priority = 0;
    // Longest time in the queue, if the model's queue policy allows requests to set it. 0: the
    // policy's timeout.
    absl::Duration timeout;
    // Time that decoding the inputs took, between `arrival` and the model's queue.
    absl::Duration decoding;

    // Start of the time in the queue; it excludes decoding.
    absl::Time queue_start() const { return arrival + decoding; }
  };

  // inputs: as returned by CheckInputs(). rows: rows of the inputs; 1 if the model does not merge
  // requests.
  InferenceRequest(std::vector<HostTensor> inputs, int64_t rows, const Schedule& schedule,
                   Done done)
      : inputs_(std::move(inputs)), rows_(rows), schedule_(schedule), done_(std::move(done)) {}

  const std::vector<HostTensor>& inputs() const { return inputs_; }
  int64_t rows() const { return rows_; }
  const Schedule& schedule() const { return schedule_; }
  // True if one batch may contain rows of both requests: inputs differ in dim 0 at most, and
  // broadcast inputs are equal scalars.
  bool SharesBatchWith(const InferenceRequest& other) const;

  // Records the queue, and keeps it alive until the request is completed.
  void EnterQueue(std::shared_ptr<Queue> queue, Place place) ABSL_LOCKS_EXCLUDED(mu_);
  Place place() const ABSL_LOCKS_EXCLUDED(mu_);
  // Marks a chunk of the request as running; Finish() or Fail() must follow. Returns false if the
  // request has already failed; its inputs must not be read then.
  bool TryStart(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // First error; other chunks may still run. OK if there is none.
  absl::Status error() const ABSL_LOCKS_EXCLUDED(mu_);
  // Time of the first TryStart(); InfiniteFuture before it.
  absl::Time started() const ABSL_LOCKS_EXCLUDED(mu_);
  // Records the outputs, in host memory, of rows [start, start + rows). The last chunk completes
  // the request.
  void Finish(int64_t start, int64_t rows, std::vector<HostTensor> outputs, std::string device,
              int64_t version, const BatchDurations& durations) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a chunk with an error. The request completes with its first error once no chunk runs.
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the rows that wait. The request completes with CANCELLED once no chunk runs.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Chunk {
    ChunkReport report;
    std::vector<HostTensor> outputs;
    BatchDurations durations;
  };
  // Keyed by the first row.
  using Chunks = std::map<int64_t, Chunk>;

  // Records the first error and leaves the queue.
  void Abandon(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Completes the request if no chunk runs and none is missing.
  void CompleteIfDone(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  static absl::StatusOr<InferenceResult> Assemble(Chunks chunks, int64_t version);

  // Constant after construction.
  const std::vector<HostTensor> inputs_;
  const int64_t rows_;
  const Schedule schedule_;

  mutable absl::Mutex mu_;
  int64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t rows_done_ ABSL_GUARDED_BY(mu_) = 0;
  bool completed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  Chunks chunks_ ABSL_GUARDED_BY(mu_);
  absl::Time started_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::shared_ptr<Queue> queue_ ABSL_GUARDED_BY(mu_);
  Place place_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

// Rows [start, start + count) of a request. If the model does not merge requests, the one row
// stands for the whole request.
struct RequestRows {
  std::shared_ptr<InferenceRequest> request;
  int64_t start = 0;
  int64_t count = 0;
};

// Joins at least one chunk along dim 0 without copying bytes. INVALID_ARGUMENT if the shapes differ
// in another dimension.
absl::StatusOr<GatheredTensor> Gather(std::vector<HostTensor> chunks);

}  // namespace braid
