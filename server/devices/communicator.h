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

// One tensor a rank, all of one shape and dtype; rank r's on the r-th device, the primary's first.
// Called by one thread at a time, but for what ranks' workers call.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // These begin after what every rank has marked by MarkReady(rank, 0), and return when the results
  // are there; meanwhile no worker uses the tensors.
  // Copies the primary's tensor into all others.
  virtual absl::Status Broadcast(const std::vector<at::Tensor>& tensors) = 0;
  // Sums all ranks' tensors into the primary's.
  virtual absl::Status Reduce(const std::vector<at::Tensor>& tensors) = 0;
  // Sums all ranks' tensors into each.
  virtual absl::Status AllReduce(const std::vector<at::Tensor>& tensors) = 0;

  // Sums that go on beside what the workers do.
  // By rank's worker: what it has queued until now makes its tensor of sum `index`.
  virtual absl::Status MarkReady(size_t rank, size_t index) = 0;
  // Begins sum `index`, for which all ranks are ready, and returns at once. `all`: into each rank's
  // tensor, else into the primary's.
  virtual absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) = 0;
  // Called by rank's worker: blocks until the sums that have begun have ended on its device.
  virtual absl::Status EndSums(size_t rank) = 0;
};

// NCCL where there are several workers and each has a GPU of its own; else nullptr: the workers
// copy and add by themselves.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers);
// The same with `cuda` in place of LoadCudaBackend().
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers,
                                                               CudaBackend* cuda);

}  // namespace braid
