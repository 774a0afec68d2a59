// What needs the CUDA runtime and NCCL. It lives in a library of its own, libbraid_cuda.so, which
// is loaded at start where there is a driver: a machine without GPUs neither needs nor pays for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/gpu_memory.h"
#include "server/devices/device.h"
#include "server/devices/nccl_clique.h"

namespace braid {

// Thread-safe. Methods other than the accessors may throw what LibTorch throws.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // GPUs that the process may use; at least 1.
  virtual int gpus() const = 0;
  // Of GPU `index`: 90 for 9.0. 0 if it does not tell.
  virtual int compute_capability(int index) const = 0;
  // A slot on GPU `index`, with a stream of its own. `threads`: its Device::threads().
  // FAILED_PRECONDITION if LibTorch's kernels do not run there.
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int index, int threads) = 0;
  // Returns whether nothing runs on GPU `index` any more.
  virtual bool Lost(int index) = 0;
  // Communicators over distinct GPUs, the primary's first.
  virtual absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(
      const std::vector<int>& gpus) = 0;
  // Memory that another process has exported from GPU `index`: a GpuMemoryOpener.
  virtual absl::StatusOr<std::unique_ptr<GpuMemory>> OpenGpuMemory(const std::string& handle,
                                                                   int index) = 0;
};

// The backend, never null, loaded at the first call, which has to come before any other use of
// LibTorch. Where no GPU can be used, the reason, which the first call logs: NOT_FOUND if there is
// no driver, else UNAVAILABLE.
absl::StatusOr<CudaBackend*> LoadCudaBackend();

// What libbraid_cuda.so exports: nullptr if no GPU can be used, for the reason `*why`.
using MakeCudaBackendFunction = CudaBackend* (*)(std::string* why);
inline constexpr char kMakeCudaBackend[] = "BraidMakeCudaBackend";

}  // namespace braid
