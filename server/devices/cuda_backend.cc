#include "server/devices/cuda_backend.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/devices/cuda_environment.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// NOLINTBEGIN(concurrency-mt-unsafe): glibc's dlerror() is thread-safe.
absl::StatusOr<CudaBackend*> Load() {
  SetCudaEnvironment("/");
  // Without a driver, LibTorch's CUDA libraries would take 350 MB of memory for nothing.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  }
  void* const library = dlopen("libbraid_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return absl::UnavailableError(dlerror());
  }
  const auto make = reinterpret_cast<MakeCudaBackendFunction>(dlsym(library, kMakeCudaBackend));
  if (make == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("libbraid_cuda.so belongs to another build: ", dlerror()));
  }
  std::string why;
  CudaBackend* const backend = make(&why);
  return backend != nullptr ? absl::StatusOr<CudaBackend*>(backend) : absl::UnavailableError(why);
}
// NOLINTEND(concurrency-mt-unsafe)

absl::StatusOr<CudaBackend*> LoadAndLog() {
  absl::StatusOr<CudaBackend*> backend = Load();
  if (!backend.ok()) {
    Log(LogModule::kDevices)
        .log(absl::IsNotFound(backend.status()) ? spdlog::level::info : spdlog::level::warn,
             "GPUs: not available ({})", std::string(backend.status().message()));
  }
  return backend;
}

}  // namespace

absl::StatusOr<CudaBackend*> LoadCudaBackend() {
  static const absl::StatusOr<CudaBackend*> kBackend = LoadAndLog();
  return kBackend;
}

}  // namespace braid
