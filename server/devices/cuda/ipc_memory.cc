#include "server/devices/cuda/ipc_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "cuda.h"
#include "server/base/status.h"
#include "server/devices/cuda/cuda_status.h"

namespace braid {
namespace {

// Returns the bytes from `memory` to the end of its allocation. Looks the driver's function up
// through the runtime, so that this library is not linked with the driver.
absl::StatusOr<size_t> AllocatedBytes(void* memory) {
  constexpr unsigned int kSince = 3020;  // the CUDA version that gave the function this form
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaGetDriverEntryPointByVersion(
      "cuMemGetAddressRange", &function, kSince, cudaEnableDefault, &found)));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::InternalError("the CUDA driver lacks cuMemGetAddressRange");
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const CUresult result = reinterpret_cast<decltype(&cuMemGetAddressRange)>(function)(
      &base, &bytes, reinterpret_cast<CUdeviceptr>(memory));
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("cuMemGetAddressRange: error ", static_cast<int>(result)));
  }
  return bytes - (reinterpret_cast<CUdeviceptr>(memory) - base);
}

// Sets the thread's current GPU for a scope. LibTorch's guard would throw if the GPU is lost.
class OnGpu {
 public:
  explicit OnGpu(int gpu) {
    status_ = BRAID_CUDA(cudaGetDevice(&outer_));
    status_.Update(BRAID_CUDA(cudaSetDevice(gpu)));
  }
  ~OnGpu() {
    cudaSetDevice(outer_);
    // Clears the runtime's last error, which an unrelated call could see otherwise.
    static_cast<void>(cudaGetLastError());
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  int outer_ = 0;
  absl::Status status_;
};

class IpcMemory final : public GpuMemory {
 public:
  IpcMemory(int device, void* memory) : device_(device), memory_(static_cast<char*>(memory)) {}
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  ~IpcMemory() override {
    const OnGpu on_gpu(device_);
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
    cudaIpcCloseMemHandle(memory_);
  }

  absl::Status Open() {
    BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    BRAID_ASSIGN_OR_RETURN(bytes_, AllocatedBytes(memory_));
    return absl::OkStatus();
  }

  size_t bytes() const override { return bytes_; }

  absl::Status Read(size_t offset, size_t bytes, void* to) const override {
    return Copy(to, memory_ + offset, bytes, cudaMemcpyDeviceToHost);
  }
  absl::Status Write(size_t offset, size_t bytes, const void* from) const override {
    return Copy(memory_ + offset, from, bytes, cudaMemcpyHostToDevice);
  }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
    const OnGpu on_gpu(device_);
    BRAID_RETURN_IF_ERROR(on_gpu.status());
    BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_)));
    return BRAID_CUDA(cudaStreamSynchronize(stream_));
  }

  const int device_;
  char* const memory_;
  size_t bytes_ = 0;
  // A separate stream, so that copies do not wait for models.
  cudaStream_t stream_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMemory>> OpenIpcMemory(const std::string& handle, int device) {
  cudaIpcMemHandle_t exported;
  if (handle.size() != sizeof(exported)) {
    return InvalidField("raw_handle",
                        absl::StrCat(handle.size(), " bytes (expected the ", sizeof(exported),
                                     " bytes of a cudaIpcMemHandle_t)"));
  }
  std::memcpy(&exported, handle.data(), sizeof(exported));
  const OnGpu on_gpu(device);
  BRAID_RETURN_IF_ERROR(on_gpu.status());
  void* memory = nullptr;
  const cudaError_t opened =
      cudaIpcOpenMemHandle(&memory, exported, cudaIpcMemLazyEnablePeerAccess);
  if (opened != cudaSuccess) {
    return InvalidField(
        "raw_handle",
        absl::StrCat("cannot be opened on GPU ", device, ": ", cudaGetErrorString(opened),
                     " (expected a handle from another process for memory of this GPU)"));
  }
  auto ipc_memory = std::make_unique<IpcMemory>(device, memory);
  BRAID_RETURN_IF_ERROR(ipc_memory->Open());
  return ipc_memory;
}

}  // namespace braid
