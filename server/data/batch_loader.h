// Batches of a data set for training, loaded ahead by threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/data/row_order.h"
#include "server/data/row_store.h"

namespace braid {

// Batch number n of a job has the rows at positions [p, p + batch_size) of epoch n /
// batches_per_epoch, with p = n % batches_per_epoch * batch_size. Its rows do not depend on the
// number of threads, nor on where the job was interrupted. Next() must be called by one thread at a
// time.
class BatchLoader {
 public:
  struct Options {
    std::shared_ptr<const RowStore> store;
    std::shared_ptr<const RowOrder> order;
    int64_t batch_size = 1;
    // Leaves out the last batch of an epoch if it has fewer rows than batch_size.
    bool drop_last = false;
    // Number of the first batch, to continue after an interruption.
    int64_t first_batch = 0;
    // Number of the batch after the last one, at least first_batch.
    int64_t end_batch = 0;
    int threads = 1;
    // Limit on the bytes of batches that are loaded or being loaded ahead, of which there are at
    // most 64. One batch is always allowed.
    size_t max_bytes = size_t{64} << 20;
  };

  struct Batch {
    int64_t number = 0;
    int64_t epoch = 0;
    // Position of the first row in the epoch.
    int64_t position = 0;
    // Named as the store's fields.
    std::vector<HostTensor> tensors;
    // Time that Next() waited for this batch.
    absl::Duration waited;
  };

  // Starts the threads. INVALID_ARGUMENT if an epoch has no batches.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(Options options);
  // Stops the threads after the batches that they are loading.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Returns the number of batches in an epoch; 0 if drop_last leaves none.
  static int64_t BatchesPerEpoch(int64_t positions, int64_t batch_size, bool drop_last);

  // Blocks until the next batch is loaded. Returns nullopt after the last one. Errors as
  // RowStore::Gather(), for the batch that they concern; the next call returns the next batch.
  absl::StatusOr<std::optional<Batch>> Next() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit BatchLoader(Options options);

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Batch> Load(int64_t number) const;
  bool MayLoad() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || next_to_load_ == options_.end_batch ||
           next_to_load_ < next_ + static_cast<int64_t>(max_ahead_);
  }
  bool HasNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return loaded_.contains(next_); }

  // Constant after construction.
  const Options options_;
  const int64_t batches_per_epoch_;
  const size_t max_ahead_;  // batches

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_ ABSL_GUARDED_BY(mu_);          // batch that Next() returns
  int64_t next_to_load_ ABSL_GUARDED_BY(mu_);  // batch that a thread takes
  std::map<int64_t, absl::StatusOr<Batch>> loaded_ ABSL_GUARDED_BY(mu_);

  std::vector<std::thread> threads_;
};

}  // namespace braid
