#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/devices/communicator.h"
#include "server/devices/run_on.h"
#include "server/devices/worker.h"

namespace braid {
namespace {

class HostCommunicator final : public Communicator {
 public:
  explicit HostCommunicator(std::vector<Worker*> workers) : workers_(std::move(workers)) {}

  absl::Status Broadcast(const std::vector<at::Tensor>& tensors) override {
    const std::vector<Worker*> others(workers_.begin() + 1, workers_.end());
    return RunOnEach(others, Phase::kBroadcast, [&](size_t i) {
      tensors[i + 1].copy_(tensors[0]);
      return absl::OkStatus();
    });
  }

  absl::Status Reduce(const std::vector<at::Tensor>& tensors, size_t ranks) override {
    if (ranks < 2) {
      return absl::OkStatus();
    }
    return RunOnEach({workers_[0]}, Phase::kReduce, [&](size_t) {
      for (size_t r = 1; r < ranks; ++r) {
        tensors[0].add_(tensors[r].to(tensors[0].device()));
      }
      return absl::OkStatus();
    });
  }

 private:
  const std::vector<Worker*> workers_;
};

}  // namespace

std::unique_ptr<Communicator> MakeHostCommunicator(std::vector<Worker*> workers) {
  return std::make_unique<HostCommunicator>(std::move(workers));
}

}  // namespace braid
