// Batch norm over the rows of several ranks of a worker group: normalization, running statistics
// and gradients are those of their whole batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/thread_kernels.h"
#include "server/devices/worker_group.h"

namespace braid {

class BatchNormExchange;

// One rank's place at an exchange: `worker_group` is met as `rank` in `group`, of which it is
// `member`.
struct BatchNormSeat {
  WorkerGroup& worker_group;
  size_t group;
  size_t rank;
  size_t member;
  BatchNormExchange& exchange;
};

// What the ranks of one group exchange during one forward and backward. One object per step and
// stage, shared by its ranks. Thread-safe.
class BatchNormExchange {
 public:
  struct Part {
    int64_t count = 0;  // values a channel
    at::Tensor values;  // numbers of each channel, [k, channels]
  };

  explicit BatchNormExchange(size_t members);

  // The parts of all members in their order, on the device of this one's. Meets the others, once.
  // CANCELLED if one of them has failed, FAILED_PRECONDITION if one is somewhere else in its model.
  absl::StatusOr<std::vector<Part>> AllGather(const BatchNormSeat& seat, const Part& part)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Slot {
    uint64_t round = 0;  // the exchange that it was filled for, from 1; 0: none
    Part part;
  };

  absl::Mutex mu_;
  // Two sets by turns, so that one meeting an exchange is enough: a member fills a set again after
  // the meeting over the other, and each came to that one after it had read this set.
  std::array<std::vector<Slot>, 2> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> rounds_ ABSL_GUARDED_BY(mu_);  // exchanges that a member has begun
};

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
