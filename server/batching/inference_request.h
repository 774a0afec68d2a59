// One inference request, from its admission to its reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

// Rows that went through a forward pass as part of one batch on one device.
struct ChunkReport {
  std::string device;
  int64_t rows = 0;
};

struct InferenceResult {
  // In the order of the model's outputs.
  std::vector<GatheredTensor> outputs;
  int64_t version = 0;
  std::vector<ChunkReport> chunks;
  // Of all batches that it was in.
  BatchDurations durations;
  // From its arrival until a worker took the first of its rows, and from then on.
  absl::Duration queued;
  absl::Duration computed;
};

// Thread-safe. Pieces of it may run on several workers at the same time.
class InferenceRequest {
 public:
  // Called once, by a worker; must not block. The inputs are not read after it.
  using Done = absl::AnyInvocable<void(absl::StatusOr<InferenceResult>)>;

  // In its queue: the index of its priority, and a number among those of that priority.
  struct Place {
    size_t level = 0;
    int64_t number = 0;
  };
  // Where it waits. Called without the request's lock.
  class Queue {
   public:
    virtual ~Queue() = default;
    // What of `request` still waits will not be run.
    virtual void Drop(const InferenceRequest& request) = 0;
    // `request` is over: passes its result on.
    virtual void Answer(const InferenceRequest& request, Done done,
                        absl::StatusOr<InferenceResult> result) = 0;
  };

  // What its place in the queue depends on.
  struct Schedule {
    absl::Time arrival;
    // After it the request is not run.
    absl::Time deadline = absl::InfiniteFuture();
    // 1, the most urgent, to the model's priority_levels; 0: the model's default.
    int64_t priority = 0;
    // How long it may wait, where the model's queue policy lets a request say so. Zero: the
    // policy's.
    absl::Duration timeout;
  };

  // `inputs` as CheckInputs() gave them; `rows`: of all of them, or 1 if the model merges
  // no requests.
  InferenceRequest(std::vector<HostTensor> inputs, int64_t rows, const Schedule& schedule,
                   Done done)
      : inputs_(std::move(inputs)), rows_(rows), schedule_(schedule), done_(std::move(done)) {}

  const std::vector<HostTensor>& inputs() const { return inputs_; }
  int64_t rows() const { return rows_; }
  const Schedule& schedule() const { return schedule_; }
  // Whether rows of both requests may share a batch: the inputs differ in dim 0 at most, and what
  // is broadcast is one number, the same in both.
  bool SharesBatchWith(const InferenceRequest& other) const;

  // Waits in `queue`, which it keeps alive until it is answered.
  void Enter(std::shared_ptr<Queue> queue, Place place) ABSL_LOCKS_EXCLUDED(mu_);
  Place place() const ABSL_LOCKS_EXCLUDED(mu_);
  // A piece of the request is taken to be run; Finish() or Fail() follows. False: the request has
  // failed, and its inputs must not be read any more.
  bool Begin(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Why it has failed, although pieces of it may still run; OK: it has not.
  absl::Status error() const ABSL_LOCKS_EXCLUDED(mu_);
  // When its first piece was taken; InfiniteFuture: not yet.
  absl::Time begun() const ABSL_LOCKS_EXCLUDED(mu_);
  // The outputs of `rows` rows from `start` on, in host memory, of a batch that took `durations`.
  // The last piece answers the request.
  void Finish(int64_t start, int64_t rows, std::vector<HostTensor> outputs, std::string device,
              int64_t version, const BatchDurations& durations) ABSL_LOCKS_EXCLUDED(mu_);
  // A piece failed: the request is answered with the first error, once no other piece runs.
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Nobody waits for it any more: what of it is not running will not be run, and it is answered
  // CANCELLED.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Piece {
    int64_t start = 0;
    int64_t rows = 0;
    std::vector<HostTensor> outputs;
    std::string device;
    BatchDurations durations;
  };

  // Keeps `status` as its answer, if it is the first error, and takes it out of its queue.
  void GiveUp(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers, if there is nothing left to wait for.
  void AnswerIfOver(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  static absl::StatusOr<InferenceResult> Assemble(std::vector<Piece> pieces, int64_t version);

  // Immutable after construction.
  const std::vector<HostTensor> inputs_;
  const int64_t rows_;
  const Schedule schedule_;

  mutable absl::Mutex mu_;
  int64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t rows_done_ ABSL_GUARDED_BY(mu_) = 0;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  absl::Time begun_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::shared_ptr<Queue> queue_ ABSL_GUARDED_BY(mu_);
  Place place_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

// One tensor of `pieces`, at least one, whose bytes stay where they are. INVALID_ARGUMENT unless
// their shapes are one but for dim 0.
absl::StatusOr<GatheredTensor> Gather(std::vector<HostTensor> pieces);

}  // namespace braid
