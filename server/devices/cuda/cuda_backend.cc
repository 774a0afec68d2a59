#include "server/devices/cuda_backend.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAFunctions.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "server/base/status.h"
#include "server/devices/cuda/cuda_status.h"
#include "server/devices/cuda/nccl_communicator.h"

namespace braid {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::string hardware)
      : index_(static_cast<c10::DeviceIndex>(index)),
        hardware_(std::move(hardware)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_)) {}

  void Enter() override {
    c10::cuda::set_device(index_);
    c10::cuda::setCurrentCUDAStream(stream_);
  }
  absl::Status Synchronize() override {
    const cudaError_t result = cudaStreamSynchronize(stream_);
    if (EndsContext(result)) {
      return absl::UnavailableError(
          absl::StrCat("the GPU is lost to this server: ", cudaGetErrorString(result),
                       "; it serves again after a restart"));
    }
    return CudaStatus(result, "cudaStreamSynchronize");
  }
  void ResetPeakMemory() override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(index_);
    before_ = Stats().current;
  }
  int64_t PeakMemory() override { return Stats().peak - before_; }
  c10::Device torch_device() const override { return {c10::kCUDA, index_}; }
  std::string hardware() const override { return hardware_; }
  int threads() const override { return 0; }

 private:
  // Of the whole GPU: what this process's tensors take.
  c10::CachingAllocator::Stat Stats() const {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(index_).allocated_bytes[kAll];
  }

  const c10::DeviceIndex index_;
  const std::string hardware_;
  const c10::cuda::CUDAStream stream_;
  int64_t before_ = 0;
};

class RealCudaBackend final : public CudaBackend {
 public:
  explicit RealCudaBackend(int gpus) : gpus_(gpus) {}

  int gpus() const override { return gpus_; }
  int compute_capability(int index) const override {
    cudaDeviceProp properties;
    const bool told = cudaGetDeviceProperties(&properties, index) == cudaSuccess;
    return told ? properties.major * 10 + properties.minor : 0;
  }

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int index) override {
    // Opens the context here, where an error can still be told; the worker's Enter() finds it open.
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
    BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaFree(nullptr)));
    cudaDeviceProp properties;
    BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaGetDeviceProperties(&properties, index)));
    return std::make_unique<CudaDevice>(index, properties.name);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(
      std::vector<Worker*> workers) override {
    return MakeNccl(std::move(workers));
  }

 private:
  const int gpus_;
};

}  // namespace
}  // namespace braid

extern "C" braid::CudaBackend* BraidMakeCudaBackend() {
  const int gpus = static_cast<unsigned char>(c10::cuda::device_count());
  // Lives as long as the process, as the CUDA context does.
  static braid::RealCudaBackend backend(gpus);
  return gpus > 0 ? &backend : nullptr;
}
