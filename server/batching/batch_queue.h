// Queue of one model version: holds its requests, gives its workers batches, and replies.
//
// A batch that fails is retried in halves until a single request fails, so that bad input fails
// only its own request.
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
#include "server/batching/ordered_replies.h"
#include "server/batching/request_queue.h"
#include "server/batching/run_inference.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/packed_weights.h"
#include "server/parallel/replica_set.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"

namespace braid {

// Thread-safe. Owned by shared pointers: ServedModels, every waiting request and every running
// batch hold one, so that a version that is no longer served lives until its requests are
// completed.
class BatchQueue final : public RequestQueue,
                         public WorkSource,
                         public InferenceRequest::Queue,
                         public ExpiringQueue,
                         public std::enable_shared_from_this<BatchQueue> {
 public:
  // replicas: one per worker. `metrics` outlives the queue, and `expiries` the last Push(). Without
  // `expiries`, an expired request fails when a worker asks for work or another request arrives.
  BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics,
             ExpiryThread* expiries = nullptr);
  // A second queue for the version of `before`: shares its replicas and statistics, not its
  // requests.
  BatchQueue(ModelConfig config, const BatchQueue& before, Metrics* metrics,
             ExpiryThread* expiries = nullptr);

  absl::Status Push(std::shared_ptr<InferenceRequest> request,
                    RunMode mode = RunMode::kOnWorker) override ABSL_LOCKS_EXCLUDED(mu_);

  // WorkSource:
  Next Take(const Worker& worker, absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);
  double weight() const override { return config_.weight; }

  // ExpiringQueue:
  absl::Time Expire(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);

  // InferenceRequest::Queue:
  void Remove(const InferenceRequest& request) override ABSL_LOCKS_EXCLUDED(mu_);
  void Complete(const InferenceRequest& request, InferenceRequest::Done done,
                absl::StatusOr<InferenceResult> result) override;

  OrderedReplies* arrivals() const override { return arrivals_.get(); }
  void CountDecoded(int64_t rows, absl::Duration busy) override;
  void CountDecodeFailure() override;

  const ModelConfig& config() const override { return config_; }
  int64_t version() const override { return version_; }
  const ModelStatistics& statistics() const override { return shared_->statistics; }
  const ReplicaSet& replicas() const { return shared_->replicas; }
  // Returns the index of the replica on `worker`.
  size_t ReplicaOf(const Worker& worker) const;
  // Runs a batch on the calling worker, like RunInference(). Also for queues that share the
  // replicas.
  absl::Status RunBatch(size_t replica, TakeBatch take, ReplyToBatch reply) const;
  // Bytes of each replica's parameters and buffers; empty entries for formats that do not expose
  // them.
  const std::vector<int64_t>& bytes() const { return shared_->bytes; }

 private:
  using Rows = std::vector<RequestRows>;
  // State that the queues of a version share.
  struct Shared {
    explicit Shared(ReplicaSet all);

    const ReplicaSet replicas;
    const std::vector<int64_t> bytes;
    const PackedWeights packed;
    ModelStatistics statistics;
  };
  // A batch that a worker has taken.
  struct TakenBatch {
    Batcher::Batch batch;
    bool retried = false;
    bool is_short = false;        // expected to take at most 200 µs
    int64_t workers_to_wake = 0;  // for the rows that still wait
  };

  BatchQueue(ModelConfig config, int64_t version, std::shared_ptr<Shared> shared, Metrics* metrics,
             ExpiryThread* expiries);

  IdleWorkers Idle(const Worker& asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Updates the metric of waiting rows, which were `before`.
  void CountQueued(int64_t before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Workers to wake for the waiting rows and the retries.
  int64_t WorkersWanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeWorkers(int64_t count);
  // Runs the next batch on the calling thread in place of an idle worker. False if there is no
  // batch or no idle worker.
  bool RunInline();
  // Returns when expiries_ must call Expire(), if that is earlier than the call it already knows
  // of; else InfiniteFuture.
  absl::Time ScheduleExpiry() ABSL_LOCKS_EXCLUDED(mu_);
  void FailExpired(const std::vector<std::shared_ptr<InferenceRequest>>& expired) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ExpiredError() const;

  // Runs a taken batch on the calling worker. On failure, queues its parts for a retry, or fails
  // its only request.
  void Run(size_t replica, TakenBatch taken) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails the expired requests of `taken` and returns the rows to run.
  Rows Start(Worker& worker, TakenBatch* taken) const;
  // Drops rows whose request failed or expired since the first attempt.
  Rows DropEnded(Rows rows) const;
  // Records the batch and gives each request its outputs.
  void Reply(Worker& worker, const Rows& rows, absl::Time start, BatchResult result)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RetryInParts(const Rows& rows, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  // Wakes workers for the rows that arrived during a short batch.
  void EndShortBatch(const Worker& worker) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const ModelConfig config_;
  const int64_t version_;
  const std::shared_ptr<Shared> shared_;
  ExpiryThread* const expiries_;

  // Thread-safe.
  ModelMetrics metrics_;
  std::vector<OrderedReplies> ordered_replies_;  // per priority level; empty without ordering
  std::unique_ptr<OrderedReplies> arrivals_;     // null without ordering or decoders

  absl::Mutex mu_;
  Batcher batcher_ ABSL_GUARDED_BY(mu_);
  // Next call of Expire() that expiries_ knows of.
  absl::Time scheduled_expiry_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::deque<Rows> retry_queue_ ABSL_GUARDED_BY(mu_);
  ChunkCost cost_ ABSL_GUARDED_BY(mu_);
  int64_t short_batches_ ABSL_GUARDED_BY(mu_) = 0;  // running now
};

}  // namespace braid
