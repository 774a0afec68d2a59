#include "server/devices/cuda_backend.h"

#include <dlfcn.h>

#include "server/telemetry/log.h"

namespace braid {
namespace {

// NOLINTBEGIN(concurrency-mt-unsafe): dlerror() is glibc's, which keeps an error a thread.
CudaBackend* Load() {
  // Without a driver the CUDA libraries of LibTorch are 350 MB of memory for nothing.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    Log(LogModule::kDevices).debug("no CUDA driver: {}", dlerror());
    return nullptr;
  }
  void* library = dlopen("libbraid_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    Log(LogModule::kDevices).warn("there is a CUDA driver, but no GPU support: {}", dlerror());
    return nullptr;
  }
  auto* make = reinterpret_cast<MakeCudaBackendFunction>(dlsym(library, kMakeCudaBackend));
  if (make == nullptr) {
    Log(LogModule::kDevices).warn("libbraid_cuda.so is not of this build: {}", dlerror());
    return nullptr;
  }
  return make();
}
// NOLINTEND(concurrency-mt-unsafe)

}  // namespace

CudaBackend* LoadCudaBackend() {
  static CudaBackend* const kBackend = Load();
  return kBackend;
}

}  // namespace braid
