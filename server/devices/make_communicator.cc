#include <set>
#include <utility>

#include "server/devices/collectives.h"
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
  return MakeCommunicator(std::move(workers), LoadCudaBackend().value_or(nullptr));
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers,
                                                               CudaBackend* cuda) {
  if (workers.size() < 2 || !AllOnGpusOfTheirOwn(workers)) {
    return nullptr;
  }
  return Collectives::Create(std::move(workers), *cuda, Collectives::Options());
}

}  // namespace braid
