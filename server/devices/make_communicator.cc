#include <set>
#include <utility>

#include "server/base/status.h"
#include "server/devices/communicator.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/run_on.h"
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
  std::unique_ptr<Communicator> communicator;
  if (workers.size() > 1 && AllOnGpusOfTheirOwn(workers)) {
    BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(communicator, cuda->MakeNcclCommunicator(std::move(workers)));
      return absl::OkStatus();
    }));
  }
  return communicator;
}

}  // namespace braid
