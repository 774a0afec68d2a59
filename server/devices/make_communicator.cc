#include <set>
#include <utility>

#include "server/devices/communicator.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/worker.h"

namespace braid {
namespace {

// NCCL takes a GPU once in a communicator.
bool AllOnGpusOfTheirOwn(const std::vector<Worker*>& workers) {
  std::set<int> gpus;
  for (const Worker* worker : workers) {
    const c10::Device device = worker->torch_device();
    if (!device.is_cuda() || !gpus.insert(device.index()).second) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers) {
  if (workers.size() > 1 && AllOnGpusOfTheirOwn(workers)) {
    return LoadCudaBackend()->MakeNcclCommunicator(std::move(workers));
  }
  return nullptr;
}

}  // namespace braid
