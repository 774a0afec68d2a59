// One version of a model at work: its requests, the batches that its workers take, and the answers.
//
// A batch that fails is run again in halves, until a request fails alone: for its own input only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/batcher.h"
#include "server/batching/chunk_cost.h"
#include "server/batching/expiry_thread.h"
#include "server/batching/inference_request.h"
#include "server/batching/ordered_answers.h"
#include "server/batching/request_queue.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/packed_weights.h"
#include "server/parallel/replica_set.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"

namespace braid {

// Thread-safe. Owned by shared pointers: every request that waits and every batch that runs holds
// one, so that a version that is served no more lives until it has answered.
class BatchQueue final : public RequestQueue,
                         public WorkSource,
                         public InferenceRequest::Queue,
                         public Expiring,
                         public std::enable_shared_from_this<BatchQueue> {
 public:
  // `replicas`: one a worker. `metrics` outlives the queue, `expiries` the last Push(); without
  // them a request that expires is answered when a worker asks, or another request comes.
  BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics,
             ExpiryThread* expiries = nullptr);

  absl::Status Push(std::shared_ptr<InferenceRequest> request,
                    Runner runner = Runner::kWorker) override ABSL_LOCKS_EXCLUDED(mu_);

  // For Worker: the next batch.
  Next Take(const Worker& worker, absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);
  double weight() const override { return config_.weight; }

  // For ExpiryThread: answers what has expired.
  absl::Time Expire(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);

  // For InferenceRequest.
  void Drop(const InferenceRequest& request) override ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(const InferenceRequest& request, InferenceRequest::Done done,
              absl::StatusOr<InferenceResult> result) override;

  const ModelConfig& config() const override { return config_; }
  int64_t version() const override { return version_; }
  const ModelStatistics& statistics() const override { return statistics_; }
  const ReplicaSet& replicas() const { return replicas_; }
  // Of each replica: what its parameters and buffers take; none of a model that does not tell.
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  using Pieces = std::vector<Batcher::Piece>;

  IdleWorkers Idle(const Worker& asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the rows that wait, which were `before`.
  void CountQueued(int64_t before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For the rows that wait now, and what is to be run again.
  int64_t WorkersWanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeWorkers(int64_t wanted);
  // Runs the next batch on the calling thread, for a worker that is free; false: there is none.
  bool RunHere();
  size_t ReplicaOf(const Worker& worker) const;
  // When expiries_ has to look beside the times that it knows already; InfiniteFuture: it need not.
  absl::Time NextLook() ABSL_LOCKS_EXCLUDED(mu_);
  // Tells those that have waited for too long.
  void FailExpired(const std::vector<std::shared_ptr<InferenceRequest>>& expired) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Expired() const;
  // Lets go of those of `part` that failed or expired meanwhile; returns the others.
  Pieces StillWanted(const Pieces& part) const;
  void Run(size_t replica, const Batcher::Batch& batch) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs `pieces` as one batch. If that fails parts of it are to be run, or its only request fails.
  void RunOrDivide(size_t replica, const Pieces& pieces) ABSL_LOCKS_EXCLUDED(mu_);
  // A brief batch is over: wakes whom the rows want that came meanwhile.
  void EndBrief(size_t replica) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs `pieces` as one batch; nobody is told of an error.
  absl::Status RunPieces(size_t replica, const Pieces& pieces) ABSL_LOCKS_EXCLUDED(mu_);

  // Immutable after construction.
  const ModelConfig config_;
  const int64_t version_;
  const ReplicaSet replicas_;
  const std::vector<int64_t> bytes_;
  const PackedWeights packed_;
  ExpiryThread* const expiries_;

  // Provide their own synchronization.
  ModelMetrics metrics_;
  ModelStatistics statistics_;
  std::vector<OrderedAnswers> ordered_answers_;  // by priority; none if any order will do

  absl::Mutex mu_;
  Batcher batcher_ ABSL_GUARDED_BY(mu_);
  absl::Time look_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // the next that expiries_ has
  std::deque<Pieces> again_ ABSL_GUARDED_BY(mu_);                  // parts of batches that failed
  ChunkCost cost_ ABSL_GUARDED_BY(mu_);
  int64_t brief_ ABSL_GUARDED_BY(mu_) = 0;  // batches that run, and not for long
};

}  // namespace braid
