// Collectives over GPUs.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

class Worker;

// One tensor a rank, all of one shape and dtype; rank r's on the r-th device, the primary's first.
// Called by one thread at a time, while no worker uses the tensors; returns when the results are
// there.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Copies the primary's tensor into all others.
  virtual absl::Status Broadcast(const std::vector<at::Tensor>& tensors) = 0;
  // Sums all ranks' tensors into the primary's.
  virtual absl::Status Reduce(const std::vector<at::Tensor>& tensors) = 0;
  // Sums all ranks' tensors into each.
  virtual absl::Status AllReduce(const std::vector<at::Tensor>& tensors) = 0;
};

// NCCL where there are several workers and each has a GPU of its own; else nullptr: the workers
// copy and add by themselves.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers);

}  // namespace braid
