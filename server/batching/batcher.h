// Forms batches from the requests that wait for one model version.
//
// More urgent priority levels go first. Requests of one level take turns: the rest of a request
// that exceeds a batch moves to the back, so each request waits for at most one chunk of every
// other.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/batching/batch_policy.h"
#include "server/batching/inference_request.h"
#include "server/models/model_config.h"

namespace braid {

// Not thread-safe. Reads no clock; callers pass the time.
class Batcher {
 public:
  // Every request in it is started: the caller must call Finish() or Fail() for each entry of
  // `rows`, and Fail() for each expired request.
  struct Batch {
    std::vector<RequestRows> rows;
    std::vector<std::shared_ptr<InferenceRequest>> expired;
  };

  explicit Batcher(const ModelConfig& config);

  // Queues a request. Returns the index of its priority level, less than levels().
  // RESOURCE_EXHAUSTED if the level's queue is full.
  absl::StatusOr<size_t> Add(std::shared_ptr<InferenceRequest> request);
  // Removes the waiting rows of `request`, if any.
  void Remove(const InferenceRequest& request);

  // Removes the requests whose deadline or timeout has passed, or delays them if the policy says
  // so. The caller must Fail() those returned.
  std::vector<std::shared_ptr<InferenceRequest>> Expire(absl::Time now);
  // When Expire() has work next; InfiniteFuture if never.
  absl::Time next_expiry() const {
    return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first;
  }

  // Returns the next batch, or the time at which there may be one.
  using Next = std::variant<Batch, absl::Time>;
  Next Take(absl::Time now, const IdleWorkers& idle);

  size_t levels() const { return levels_.size(); }
  // Rows that wait.
  int64_t rows() const { return rows_; }

 private:
  struct Entry {
    RequestRows rest;  // rows that wait
    size_t level = 0;
    bool delayed = false;                       // exceeded its timeout; runs after the others
    absl::Time timer = absl::InfiniteFuture();  // next expiry
  };
  using Fifo = std::list<Entry>;
  struct PriorityLevel {
    QueuePolicy policy;
    Fifo queue;
    Fifo delayed;
  };
  // How many rows a batch takes.
  struct Share {
    int64_t max_rows;
    int64_t merge_rows;  // from this size on, no further request is added
    int64_t min_rows;    // from this size on, no request is cut that fits into the next batch
    int64_t whole_rows;  // largest request that fits into the next batch
  };

  size_t LevelOf(const InferenceRequest& request) const;
  absl::Time TimeoutOf(const Entry& entry) const;
  void SetTimer(Fifo::iterator entry);
  void ClearTimer(Fifo::iterator entry);
  void Erase(Fifo::iterator entry);
  Fifo& FifoOf(Fifo::iterator entry);
  QueueView View(const IdleWorkers& idle) const;
  void Fill(const Share& share, absl::Time now, Batch* batch);

  const BatchLimits limits_;
  const int64_t default_priority_;
  std::vector<PriorityLevel> levels_;  // the most urgent first
  absl::flat_hash_map<const InferenceRequest*, Fifo::iterator> entries_;
  absl::btree_set<std::pair<absl::Time, const InferenceRequest*>> timers_;
  int64_t rows_ = 0;
  // Requests with both taken and waiting rows.
  int64_t started_ = 0;
  // Rows left of a full batch that is being shared among workers. They do not wait for more rows.
  int64_t released_rows_ = 0;
};

}  // namespace braid
