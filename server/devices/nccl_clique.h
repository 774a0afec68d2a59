// NCCL communicators of a set of GPUs, one per GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

enum class CollectiveKind { kBroadcast, kReduce, kAllReduce };

// Starts collectives on streams of its own without waiting for them. Tensors and ranks are those of
// Communicator. Owned by an NcclCommunicator. At most one thread in the process may create, destroy
// or Begin() at a time (CudaBackend::nccl_mutex()); the other methods may run concurrently. All
// methods may throw LibTorch's exceptions.
class NcclClique {
 public:
  virtual ~NcclClique() = default;

  // Starts one collective on all ranks. UNIMPLEMENTED, with nothing started, for a dtype that NCCL
  // does not support.
  virtual absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) = 0;
  // Called by the rank's worker: records an event for sum `index` after the work queued so far.
  virtual absl::Status MarkReady(size_t rank, size_t index) = 0;
  // Makes the next collective wait for the event of sum `index` on every rank.
  virtual absl::Status FollowReady(size_t index) = 0;

  // Blocks until the rank's part of all collectives has ended or was aborted.
  virtual absl::Status Wait(size_t rank) = 0;
  // Returns true if a collective is in flight, without blocking; an error if one has failed.
  virtual absl::StatusOr<bool> Running() = 0;
  // Ends the collectives in flight and unblocks a thread that is stuck in Begin(). Called at most
  // once; afterwards only Wait() may be called.
  virtual void Abort() = 0;
};

}  // namespace braid
