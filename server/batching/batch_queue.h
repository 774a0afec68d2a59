// The requests that wait for one version of a model, and the batches that workers make of them.
//
// A worker that is free takes the next batch: rows of the request at the head and of those behind
// it, merged as far as they fit together. A request larger than a batch is taken piece by piece, by
// as many workers as are free. A batch that fails is run again one request at a time, so that a
// request fails for its own input only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/batch_policy.h"
#include "server/batching/inference_request.h"
#include "server/batching/request_queue.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/replica_set.h"
#include "server/telemetry/metrics.h"

namespace braid {

// Thread-safe. Owned by shared pointers: every request that waits and every batch that runs holds
// one, so that a version that is served no more lives until it has answered.
class BatchQueue final : public RequestQueue,
                         public WorkSource,
                         public std::enable_shared_from_this<BatchQueue> {
 public:
  // `replicas`: one a worker. `metrics` outlives the queue.
  BatchQueue(ModelConfig config, int64_t version, ReplicaSet replicas, Metrics* metrics);

  absl::Status Push(std::shared_ptr<InferenceRequest> request) override ABSL_LOCKS_EXCLUDED(mu_);

  // For Worker: the next batch.
  Next Take(const Worker& worker, absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);

  const ModelConfig& config() const override { return config_; }
  int64_t version() const override { return version_; }
  const ModelStatistics& statistics() const override { return statistics_; }
  const ReplicaSet& replicas() const { return replicas_; }

 private:
  // Rows [start, start + rows) of a request.
  struct Piece {
    std::shared_ptr<InferenceRequest> request;
    int64_t start = 0;
    int64_t rows = 0;
  };
  struct Batch {
    std::vector<Piece> pieces;
    std::vector<std::shared_ptr<InferenceRequest>> expired;
  };

  // Cuts up to `rows` rows off the queue's head.
  void Cut(int64_t rows, absl::Time now, Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves requests that expired or failed out of the queue's head.
  void DropDead(absl::Time now, Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the head out of the queue.
  void DropHead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t FreeWorkers(const Worker& asking) const;
  void WakeWorkers(int64_t rows);
  size_t ReplicaOf(const Worker& worker) const;
  void Run(size_t replica, const Batch& batch) const;
  // Runs `pieces` as one batch; nobody is told of an error.
  absl::Status RunPieces(size_t replica, const std::vector<Piece>& pieces) const;

  // Immutable after construction.
  const ModelConfig config_;
  const int64_t version_;
  const BatchLimits limits_;
  const ReplicaSet replicas_;
  Metrics* const metrics_;
  ModelStatistics statistics_;  // provides its own synchronization

  absl::Mutex mu_;
  std::deque<Piece> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_rows_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace braid
