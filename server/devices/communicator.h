// Collectives over GPUs.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

class CudaBackend;
class Worker;

// Takes one tensor per rank; all have the same shape and dtype, and rank r's is on the r-th device.
// Rank 0 is the primary. Thread-safe, except that a rank's methods are called by its worker only.
// UNIMPLEMENTED, with nothing started, for a dtype that the backend does not support; UNAVAILABLE
// once a device is lost.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Begin after the work that every rank has marked by MarkReady(rank, 0), and block until the
  // result is there. No worker may use the tensors during the call. Copies the primary's tensor
  // into all others.
  virtual absl::Status Broadcast(const std::vector<at::Tensor>& tensors) = 0;
  // Adds all ranks' tensors into the primary's.
  virtual absl::Status Reduce(const std::vector<at::Tensor>& tensors) = 0;
  // Adds all ranks' tensors into each.
  virtual absl::Status AllReduce(const std::vector<at::Tensor>& tensors) = 0;

  // Sums that overlap with other work of the ranks' workers. Sum `index` starts when its tensors
  // are ready on all ranks.
  // Called by the rank's worker: the work that it has queued so far produces its tensor.
  virtual absl::Status MarkReady(size_t rank, size_t index) = 0;
  // Starts sum `index`, which all ranks have marked ready, and returns at once. The result goes
  // into each rank's tensor if `all`, else into the primary's.
  virtual absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) = 0;
  // Called by the rank's worker: blocks until the sums that were started have ended on its device.
  virtual absl::Status EndSums(size_t rank) = 0;
};

// Returns an NCCL communicator if there are several workers and each has a GPU of its own, else
// nullptr: the workers then copy and add themselves. Callers that use the same workers at the same
// time share one. It is destroyed with its last user, because NCCL's buffers take GPU memory.
// Workers must outlive it. Thread-safe. Blocks while NCCL is initialized.
absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers);
// Same, with `cuda` instead of LoadCudaBackend().
absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers,
                                                               CudaBackend* cuda);

}  // namespace braid
