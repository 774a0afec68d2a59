// Batches of a dataset for training, loaded ahead by threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/data/encoded/decode_rows.h"
#include "server/data/load_ahead.h"
#include "server/data/row_order.h"
#include "server/data/row_store.h"

namespace braid {

// Batch number n of a job has the rows at positions [p, p + batch_size) of epoch n /
// batches_per_epoch, with p = n % batches_per_epoch * batch_size. Its rows do not depend on the
// number of threads, nor on where the job was interrupted. Several threads decode the rows of one
// batch. Next() must be called by one thread at a time.
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
    // See DecodeOptions.
    size_t max_decoded_bytes = std::numeric_limits<size_t>::max();
    // Seed of the decoders' random transforms.
    uint64_t seed = 0;
    // Leaves out rows that cannot be decoded. False: they are errors.
    bool skip_unreadable = false;
    // If it returns true, further parts of batches end with CANCELLED. Called by several threads;
    // outlives the loader. Null: never.
    std::function<bool()> stopped = nullptr;
  };

  struct Batch {
    int64_t number = 0;
    int64_t epoch = 0;
    // Position of the first row in the epoch.
    int64_t position = 0;
    // Tensors of the rows, as RowStore::Gather() returns them.
    std::vector<HostTensor> tensors;
    // Rows that were left out.
    std::vector<SkippedRow> skipped;
    // Time that Next() waited for this batch.
    absl::Duration waited;
  };

  // Starts the threads. INVALID_ARGUMENT if an epoch has no batches.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(Options options);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Returns the number of batches in an epoch; 0 if drop_last leaves none.
  static int64_t BatchesPerEpoch(int64_t positions, int64_t batch_size, bool drop_last);

  // Blocks until the next batch is loaded. Returns nullopt after the last one. Errors as
  // RowStore::Gather(), for the batch that they concern; the next call returns the next batch.
  // CANCELLED if Options::stopped ended the batch.
  absl::StatusOr<std::optional<Batch>> Next();

 private:
  class Load;

  explicit BatchLoader(Options options);

  // Returns the work for the next batch; null after the last one.
  absl::StatusOr<std::unique_ptr<LoadAhead<Batch>::Task>> MakeTask();

  // Constant after construction.
  const Options options_;
  const int64_t batches_per_epoch_;
  const int64_t part_rows_;  // rows that a thread loads at a time

  int64_t next_to_load_;    // used by MakeTask() only
  LoadAhead<Batch> ahead_;  // last member: its threads start last
};

}  // namespace braid
