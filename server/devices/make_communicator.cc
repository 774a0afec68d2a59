#include <map>
#include <set>
#include <utility>

#include "server/base/status.h"
#include "server/devices/communicator.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/nccl_communicator.h"
#include "server/devices/worker.h"

namespace braid {
namespace {

// NCCL accepts a GPU only once per communicator.
bool EachHasOwnGpu(const std::vector<Worker*>& workers) {
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

absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers) {
  return MakeCommunicator(std::move(workers), LoadCudaBackend().value_or(nullptr));
}

absl::StatusOr<std::shared_ptr<Communicator>> MakeCommunicator(std::vector<Worker*> workers,
                                                               CudaBackend* cuda) {
  if (workers.size() < 2 || !EachHasOwnGpu(workers)) {
    return nullptr;
  }
  CommunicatorCache& cache = cuda->communicators();
  const absl::MutexLock lock(&cache.mu);
  std::erase_if(cache.by_workers, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<NcclCommunicator>& cached = cache.by_workers[workers];
  if (std::shared_ptr<NcclCommunicator> used = cached.lock(); used && !used->aborted()) {
    return used;
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> made,
                         NcclCommunicator::Create(std::move(workers), *cuda, {}));
  cached = made;
  return made;
}

}  // namespace braid
