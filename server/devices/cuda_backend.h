// Interface of everything that needs the CUDA runtime and NCCL. The implementation is a separate
// library, libbraid_cuda.so, which is loaded at start if there is a driver: a machine without GPUs
// does not need the CUDA libraries.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/gpu_memory.h"
#include "server/devices/device.h"
#include "server/devices/nccl_clique.h"

namespace braid {

class NcclCommunicator;
class Worker;

// Communicators in use, by their workers. MakeCommunicator() uses it.
struct CommunicatorCache {
  absl::Mutex mu;
  std::map<std::vector<Worker*>, std::weak_ptr<NcclCommunicator>> by_workers ABSL_GUARDED_BY(mu);
};

// There is one per process, as CUDA has one state per process. Thread-safe. Methods other than the
// accessors may throw LibTorch's exceptions.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // Number of GPUs that the process may use, at least 1.
  virtual int gpus() const = 0;
  // Compute capability of GPU `index`, for example 90 for 9.0; 0 if unknown.
  virtual int compute_capability(int index) const = 0;
  // Creates a device on GPU `index` with streams of its own. `threads` is its Device::threads().
  // FAILED_PRECONDITION if LibTorch's kernels do not run on this GPU.
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int index, int threads) = 0;
  // Returns true if GPU `index` no longer executes anything for this process.
  virtual bool Lost(int index) = 0;
  // Creates NCCL communicators over distinct GPUs, the primary's first. Requires nccl_mutex().
  virtual absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(
      const std::vector<int>& gpus) = 0;
  // Opens memory that another process exported from GPU `index`; see GpuMemoryOpener.
  virtual absl::StatusOr<std::unique_ptr<GpuMemory>> OpenGpuMemory(const std::string& handle,
                                                                   int index) = 0;

  // Held while NCCL is initialized, starts a collective or is destroyed; see NcclCommunicator.
  absl::Mutex& nccl_mutex() { return nccl_mutex_; }
  CommunicatorCache& communicators() { return communicators_; }

 private:
  absl::Mutex nccl_mutex_;
  CommunicatorCache communicators_;
};

// Returns the backend, never null. The first call loads it and must precede any other use of
// LibTorch. If no GPU can be used, returns the reason, which the first call logs: NOT_FOUND if
// there is no driver, else UNAVAILABLE.
absl::StatusOr<CudaBackend*> LoadCudaBackend();

// Entry point of libbraid_cuda.so. Returns nullptr and sets `*why` if no GPU can be used.
using MakeCudaBackendFunction = CudaBackend* (*)(std::string* why);
inline constexpr char kMakeCudaBackend[] = "BraidMakeCudaBackend";

}  // namespace braid
