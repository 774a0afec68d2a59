// Communicator over replicas in host memory that counts its calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ATen/ATen.h"
#include "absl/status/status.h"
#include "server/devices/communicator.h"

namespace braid {

class HostCommunicator final : public Communicator {
 public:
  // Its calls; outlives it.
  struct Calls {
    int reduces = 0;
    std::vector<size_t> sums;  // in the order in which they started
    absl::Status fail;         // result of all sums, if it is an error
  };

  HostCommunicator(size_t ranks, Calls* calls) : ready_(ranks), calls_(calls) {}

  absl::Status Broadcast(const std::vector<at::Tensor>& tensors) override {
    for (size_t r = 1; r < tensors.size(); ++r) {
      tensors[r].copy_(tensors[0]);
    }
    return absl::OkStatus();
  }
  absl::Status Reduce(const std::vector<at::Tensor>& tensors) override {
    ++calls_->reduces;
    if (!calls_->fail.ok()) {
      return calls_->fail;
    }
    for (size_t r = 1; r < tensors.size(); ++r) {
      tensors[0].add_(tensors[r]);
    }
    return absl::OkStatus();
  }
  absl::Status AllReduce(const std::vector<at::Tensor>& tensors) override {
    const absl::Status status = Reduce(tensors);
    return status.ok() ? Broadcast(tensors) : status;
  }

  absl::Status MarkReady(size_t rank, size_t index) override {
    ready_[rank].push_back(index);
    return absl::OkStatus();
  }
  absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) override {
    calls_->sums.push_back(index);
    for (const std::vector<size_t>& ready : ready_) {
      if (std::find(ready.begin(), ready.end(), index) == ready.end()) {
        return absl::InternalError("a sum has begun before all ranks were ready");
      }
    }
    if (!calls_->fail.ok()) {
      return calls_->fail;
    }
    const absl::Status status = all ? AllReduce(tensors) : Reduce(tensors);
    --calls_->reduces;
    return status;
  }
  absl::Status EndSums(size_t rank) override {
    ready_[rank].clear();
    return absl::OkStatus();
  }

 private:
  // By rank. Guarded by the caller's lock.
  std::vector<std::vector<size_t>> ready_;
  Calls* const calls_;
};

}  // namespace braid
