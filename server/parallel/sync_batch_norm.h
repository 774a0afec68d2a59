// Synchronized batch norm over several ranks of a worker group. Normalization, running statistics
// and gradients are those of the whole batch.
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

// Position of one rank in an exchange. `rank` waits at the barriers of `group` in `worker_group`;
// `member` is its index in the group.
struct BatchNormSeat {
  WorkerGroup& worker_group;
  size_t group;
  size_t rank;
  size_t member;
  BatchNormExchange& exchange;
};

// All-gather between the ranks of one group during a forward and backward pass. There is one object
// per step and stage, shared by its ranks. Thread-safe.
class BatchNormExchange {
 public:
  struct Part {
    int64_t count = 0;  // values per channel
    at::Tensor values;  // [k, channels]
  };

  explicit BatchNormExchange(size_t members);

  // Returns the parts of all members in order, on the device of `part`. Blocks at one barrier.
  // CANCELLED if another member failed, FAILED_PRECONDITION if one is at another layer of the
  // model.
  absl::StatusOr<std::vector<Part>> AllGather(const BatchNormSeat& seat, const Part& part)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Slot {
    uint64_t round = 0;  // exchange that it was filled for, from 1; 0: none
    Part part;
  };

  absl::Mutex mu_;
  // Exchanges alternate between two sets, so that each needs only one barrier. A member refills a
  // set after the barrier of the other set, which every member reaches after reading this set.
  std::array<std::vector<Slot>, 2> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> rounds_ ABSL_GUARDED_BY(mu_);  // exchanges that each member has started
};

// Within its scope, on the calling thread, batch norm in training mode uses the statistics of the
// rows of all members. Covers aten::batch_norm and the operators of exported graphs. Hold it during
// the forward and the backward pass of training, not during evaluation. All members run the same
// model, so that they exchange at the same layers in the same order. A member may have one row or
// none if the group has at least two values per channel.
class SyncBatchNormGuard {
 public:
  // member: index of the rank in the group.
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
