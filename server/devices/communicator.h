// Collectives over the devices of a replica set.
#pragma once

#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

class Worker;

// One tensor a rank, all of one shape and dtype; rank r's on the r-th device, the primary's first.
// Called by one thread at a time, which is no worker; returns when the results are there.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Copies the primary's tensor into all others.
  virtual absl::Status Broadcast(const std::vector<at::Tensor>& tensors) = 0;
  // Adds ranks 1 … `ranks` - 1 into the primary's tensor. The host communicator adds in the order
  // of the ranks, so that a sum repeats bit for bit.
  virtual absl::Status Reduce(const std::vector<at::Tensor>& tensors, size_t ranks) = 0;
};

// For any mix of devices: each worker copies or adds by itself.
std::unique_ptr<Communicator> MakeHostCommunicator(std::vector<Worker*> workers);

// NCCL where every worker has a GPU of its own, else the host communicator.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers);

}  // namespace braid
