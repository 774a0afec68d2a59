// Queue of a job for one model version, behind the requests of clients.
//
// A worker takes rows from it only when no other work waits for the worker. While the workers also
// have other work, batches are short, so that a request waits little for one that runs. Otherwise
// they have the size with the most rows per second, which the queue finds by measuring.
//
//   auto queue = std::make_shared<BackgroundQueue>(version, /*max_rows=*/0, metrics);
//   queue->Start();
//   queue->Push(request of queue->request_rows() rows);
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/batching/batch_queue.h"
#include "server/batching/chunk_cost.h"
#include "server/batching/inference_request.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"

namespace braid {

// Keeps its version alive, also after it is unloaded. Requests do not expire, their number is not
// limited, and they count neither in the model's statistics nor in the metrics of its requests.
// Thread-safe. Owned by shared pointers: its user, every waiting request and every running batch
// hold one.
class BackgroundQueue final : public WorkSource,
                              public InferenceRequest::Queue,
                              public std::enable_shared_from_this<BackgroundQueue> {
 public:
  // `max_rows`: of a batch, besides a configured max_batch_size; 0: no other limit. `metrics`
  // outlives the queue.
  BackgroundQueue(std::shared_ptr<const BatchQueue> version, int64_t max_rows, Metrics* metrics);

  // Makes the queue a source of its version's workers.
  void Start();
  // Queues a request and wakes idle workers. A request to a model that does not merge requests is
  // one batch; others are cut into batches.
  void Push(std::shared_ptr<InferenceRequest> request) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the rows that the next request should have, if the model merges requests: a few
  // batches, and about as many as a worker computes in 50 ms.
  int64_t request_rows() const ABSL_LOCKS_EXCLUDED(mu_);

  // WorkSource:
  Next Take(const Worker& worker, absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);
  double weight() const override { return version_->config().weight; }

  // InferenceRequest::Queue:
  void Remove(const InferenceRequest& request) override ABSL_LOCKS_EXCLUDED(mu_);
  void Complete(const InferenceRequest& request, InferenceRequest::Done done,
                absl::StatusOr<InferenceResult> result) override ABSL_LOCKS_EXCLUDED(mu_);

  const BatchQueue& version() const { return *version_; }

 private:
  // Returns the longest time that a batch may take.
  absl::Duration MaxTime(absl::Time now) const;
  // Returns the rows of the next batch.
  int64_t NextRows(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Largest batch by max_rows_ and by its bytes.
  int64_t MaxRows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs rows that were started on the calling worker. If memory runs out, tries smaller batches.
  void Run(size_t replica, const RequestRows& rows) ABSL_LOCKS_EXCLUDED(mu_);
  void RunHalves(size_t replica, const RequestRows& rows) ABSL_LOCKS_EXCLUDED(mu_);
  void Record(size_t replica, int64_t rows, absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::shared_ptr<const BatchQueue> version_;

  // Thread-safe.
  ModelMetrics metrics_;

  mutable absl::Mutex mu_;
  std::deque<RequestRows> waiting_ ABSL_GUARDED_BY(mu_);
  ChunkCost cost_ ABSL_GUARDED_BY(mu_);
  int64_t max_rows_ ABSL_GUARDED_BY(mu_);       // halved when memory runs out
  int64_t row_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of inputs and outputs, the most so far
  int64_t batches_ ABSL_GUARDED_BY(mu_) = 0;
  // Per replica: bit k is set once a batch of 2^k to 2^(k+1) - 1 rows has run.
  std::vector<uint64_t> warm_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
