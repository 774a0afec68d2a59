// Batch norm over the rows of several ranks of a worker group: normalization, running statistics
// and gradients are those of their whole batch.
#pragma once

#include <cstddef>

#include "server/devices/thread_kernels.h"
#include "server/devices/worker_group.h"
#include "server/parallel/batch_norm_exchange.h"

namespace braid {

// For its scope, on the calling thread, aten::batch_norm in training mode, and what an exported
// graph has in its place, normalizes by the statistics of all members' rows, forward and backward:
// to be held in both, and not when the model is evaluated. All members run the same model, so meet
// at the same layers in the same order. A member may have a single row, or none, as long as the
// group has two values a channel.
class SyncBatchNormGuard {
 public:
  // `member`: the rank's index within the group.
  SyncBatchNormGuard(WorkerGroup& worker_group, size_t group, size_t rank, size_t member,
                     BatchNormExchange& exchange);
  ~SyncBatchNormGuard();
  SyncBatchNormGuard(const SyncBatchNormGuard&) = delete;
  SyncBatchNormGuard& operator=(const SyncBatchNormGuard&) = delete;

 private:
  const BatchNormSeat seat_;
  const BatchNormSeat* const outer_;
  const ThreadKernelsGuard kernels_;
};

}  // namespace braid
