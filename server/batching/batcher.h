// From the requests that wait for one version of a model to the batches that workers run.
//
// A more urgent priority goes first. Requests of one priority take turns: what is left of one that
// is larger than a batch goes behind the others, so that nobody waits for more than a piece of
// each.
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

// Not thread-safe. Time is what its callers say it is.
class Batcher {
 public:
  // Rows [start, start + rows) of a request.
  struct Piece {
    std::shared_ptr<InferenceRequest> request;
    int64_t start = 0;
    int64_t rows = 0;
  };
  // Every request in it has begun: Finish() or Fail() is due for each piece, Fail() for each that
  // has expired.
  struct Batch {
    std::vector<Piece> pieces;
    std::vector<std::shared_ptr<InferenceRequest>> expired;
  };

  explicit Batcher(const ModelConfig& config);

  // Returns the index of its priority, less than levels(). RESOURCE_EXHAUSTED if as many of that
  // priority wait as the queue policy allows, INVALID_ARGUMENT for one that the model does not
  // have.
  absl::StatusOr<size_t> Add(std::shared_ptr<InferenceRequest> request);
  // Forgets what of `request` waits, if anything does.
  void Remove(const InferenceRequest& request);

  // Deals with the requests whose time has come: those that are over have begun, for Fail().
  std::vector<std::shared_ptr<InferenceRequest>> Expire(absl::Time now);
  // When that is due next.
  absl::Time next_expiry() const {
    return alarms_.empty() ? absl::InfiniteFuture() : alarms_.begin()->first;
  }

  // The next batch; or, if there is none, the time from which there may be one.
  using Next = std::variant<Batch, absl::Time>;
  Next Take(absl::Time now, const IdleWorkers& idle);

  size_t levels() const { return levels_.size(); }
  // That wait.
  int64_t rows() const { return rows_; }

 private:
  struct Waiting {
    std::shared_ptr<InferenceRequest> request;
    int64_t start = 0;
    int64_t rows = 0;
    size_t level = 0;
    bool delayed = false;  // it has waited for too long, and is run after the others
    absl::Time alarm;      // the next time at which something becomes of it
  };
  using Line = std::list<Waiting>;
  struct Level {
    QueuePolicy policy;
    Line line;
    Line delayed;
  };

  size_t LevelOf(const InferenceRequest& request) const;
  absl::Time GiveUpTime(const Waiting& waiting) const;
  void SetAlarm(Line::iterator waiting);
  void ClearAlarm(Line::iterator waiting);
  void Forget(Line::iterator waiting);
  Line& LineOf(Line::iterator waiting);
  QueueView View(const IdleWorkers& idle) const;
  // What to cut off the lines.
  struct Share {
    int64_t rows;        // at most
    int64_t merge_rows;  // with so many, no further request
    int64_t enough;      // with so many, no part of one that the next batch can have whole
    int64_t whole;       // rows of a request that it can
  };
  void Cut(const Share& share, absl::Time now, Batch* batch);

  const BatchLimits limits_;
  const int64_t default_priority_;
  std::vector<Level> levels_;  // the most urgent first
  absl::flat_hash_map<const InferenceRequest*, Line::iterator> places_;
  absl::btree_set<std::pair<absl::Time, const InferenceRequest*>> alarms_;
  int64_t rows_ = 0;
  int64_t begun_ = 0;  // requests of which a piece has been taken and another waits
  // Of a batch that was full, and of which workers take shares, what is left: it waits no more.
  int64_t released_ = 0;
};

}  // namespace braid
