// NCCL's communicators of one set of GPUs, one communicator for each.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

enum class CollectiveKind { kBroadcast, kReduce, kAllReduce };

// Begins collectives on streams of its own and does not wait for them. Tensors and ranks are as
// Communicator has them. Made, destroyed and given collectives by one thread in the process at a
// time; the other methods may be called meanwhile. All methods may throw what LibTorch throws.
class NcclClique {
 public:
  virtual ~NcclClique() = default;

  // Begins one collective on all ranks. UNIMPLEMENTED, with nothing begun, for a datatype that NCCL
  // does not have.
  virtual absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) = 0;
  // Called by rank's worker: marks what it has queued until now as sum `index` of the rank.
  virtual absl::Status MarkReady(size_t rank, size_t index) = 0;
  // Has the next collective begin after sum `index` of every rank.
  virtual absl::Status FollowReady(size_t index) = 0;

  // Blocks until the rank's part of all collectives has ended, or Abort() has ended it.
  virtual absl::Status Wait(size_t rank) = 0;
  // Returns whether a collective is under way, without blocking; an error if one cannot end.
  virtual absl::StatusOr<bool> Running() = 0;
  // Ends the collectives under way, also one that a thread is stuck in beginning. Called once,
  // after which only Wait() is called.
  virtual void Abort() = 0;
};

}  // namespace braid
