#include "server/devices/cuda_backend.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/ops/ones.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAFunctions.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "server/base/status.h"
#include "server/devices/cuda/cuda_status.h"
#include "server/devices/cuda/ipc_memory.h"
#include "server/devices/cuda/nccl_clique.h"
#include "server/devices/cuda/pinned_pool.h"
#include "server/devices/run_on.h"

namespace braid {
namespace {

// CUDA event on a stream. On a lost GPU there is no event and Since() returns zero.
class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(const c10::cuda::CUDAStream& stream) : device_(stream.device_index()) {
    if (cudaEventCreate(&event_) == cudaSuccess && cudaEventRecord(event_, stream) != cudaSuccess) {
      cudaEventDestroy(std::exchange(event_, nullptr));
    }
  }
  ~CudaEvent() override {
    if (event_ != nullptr) {
      cudaEventDestroy(event_);
    }
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  absl::Duration Since(const DeviceEvent& earlier) const override {
    cudaEvent_t const begin = static_cast<const CudaEvent&>(earlier).event_;
    float milliseconds = 0;
    const bool known = begin != nullptr && event_ != nullptr &&
                       cudaEventElapsedTime(&milliseconds, begin, event_) == cudaSuccess;
    return known ? absl::Milliseconds(milliseconds) : absl::ZeroDuration();
  }
  // A GPU that was lost when the event should have been recorded says so when it is synchronized.
  absl::Status Wait() const override {
    return event_ == nullptr ? absl::OkStatus() : BRAID_CUDA(cudaEventSynchronize(event_));
  }
  // Makes `stream` wait for the event. Returns at once.
  absl::Status Block(cudaStream_t stream) const {
    return event_ == nullptr ? absl::OkStatus()
                             : BRAID_CUDA(cudaStreamWaitEvent(stream, event_, 0));
  }
  c10::DeviceIndex device() const { return device_; }

 private:
  const c10::DeviceIndex device_;
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(c10::DeviceIndex index, std::string hardware, int64_t total_memory, GpuId gpu,
             int threads)
      : index_(index),
        hardware_(std::move(hardware)),
        total_memory_(total_memory),
        gpu_(std::move(gpu)),
        threads_(threads),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_)),
        load_stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_)) {}

  void Enter() override {
    c10::cuda::set_device(index_);
    c10::cuda::setCurrentCUDAStream(stream_);
  }
  void EnterForLoading() override {
    c10::cuda::set_device(index_);
    c10::cuda::setCurrentCUDAStream(load_stream_);
  }
  absl::Status Synchronize() override {
    const cudaError_t result =
        cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(index_).stream());
    if (EndsContext(result)) {
      return absl::UnavailableError(
          absl::StrCat("the GPU failed: ", cudaGetErrorString(result), " (restart the server)"));
    }
    return CudaStatus(result, "cudaStreamSynchronize");
  }
  std::unique_ptr<DeviceEvent> RecordEvent() override {
    return std::make_unique<CudaEvent>(stream_);
  }
  absl::Status WaitEvent(const DeviceEvent& event) override {
    const auto& other = static_cast<const CudaEvent&>(event);
    BRAID_RETURN_IF_ERROR(other.Block(stream_));
    if (other.device() == index_) {
      return absl::OkStatus();
    }
    // LibTorch copies from another GPU on the calling thread's stream of that GPU.
    const c10::cuda::CUDAGuard guard(other.device());
    return other.Block(c10::cuda::getCurrentCUDAStream());
  }
  void ResetPeakMemory() override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(index_);
    before_ = Used().current;
  }
  int64_t PeakMemory() override { return Used().peak - before_; }
  c10::Allocator* pinned_memory() const override {
    // Never destroyed, because replies outlive the device.
    static PinnedPool& pool = *new PinnedPool([](void* memory, size_t bytes) {
      return BRAID_CUDA(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
    });
    return &pool;
  }
  c10::Device torch_device() const override { return {c10::kCUDA, index_}; }
  std::string hardware() const override { return hardware_; }
  std::optional<int64_t> total_memory() const override { return total_memory_; }
  int threads() const override { return threads_; }
  GpuId gpu() const override { return gpu_; }
  std::optional<AllocatorMemory> allocator_memory() const override {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index_);
    const int64_t allocated = stats.allocated_bytes[kAll].current;
    return AllocatorMemory{allocated, stats.reserved_bytes[kAll].current - allocated};
  }
  int64_t out_of_memory_errors() const override {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(index_).num_ooms;
  }

 private:
  static constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

  // Bytes of this process's tensors on the whole GPU.
  c10::CachingAllocator::Stat Used() const {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(index_).allocated_bytes[kAll];
  }

  const c10::DeviceIndex index_;
  const std::string hardware_;
  const int64_t total_memory_;
  const GpuId gpu_;
  const int threads_;
  const c10::cuda::CUDAStream stream_;
  const c10::cuda::CUDAStream load_stream_;
  int64_t before_ = 0;
};

std::string UuidOf(const cudaDeviceProp& properties) {
  const std::string hex =
      absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid.bytes)});
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

// Returns an empty string if it is unknown.
std::string PciIdOf(int index) {
  std::array<char, 32> id{};
  const bool known = cudaDeviceGetPCIBusId(id.data(), id.size(), index) == cudaSuccess;
  return known ? id.data() : "";
}

// Formats 12040 as "12.4".
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Explains the error `result` of cudaGetDeviceCount().
std::string WhyNoGpu(cudaError_t result) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return absl::StrCat("CUDA reports: ", cudaGetErrorString(result), " (", cudaGetErrorName(result),
                      "; the driver supports CUDA ", VersionText(driver), ", LibTorch uses CUDA ",
                      VersionText(runtime), ")");
}

class RealCudaBackend final : public CudaBackend {
 public:
  explicit RealCudaBackend(int gpus) : gpus_(gpus) {}

  int gpus() const override { return gpus_; }
  int compute_capability(int index) const override {
    cudaDeviceProp properties;
    const bool known = cudaGetDeviceProperties(&properties, index) == cudaSuccess;
    return known ? properties.major * 10 + properties.minor : 0;
  }

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int index, int threads) override {
    cudaDeviceProp properties;
    BRAID_RETURN_IF_ERROR(BRAID_CUDA(cudaGetDeviceProperties(&properties, index)));
    const auto device_index = static_cast<c10::DeviceIndex>(index);
    // The first tensor initializes the CUDA context and LibTorch's allocator, which Enter() and a
    // scrape of the metrics need, where an error can still be reported. Its kernel shows whether
    // LibTorch has code for this GPU.
    const absl::Status ran = CatchTorch([&] {
      const c10::cuda::CUDAGuard on_gpu(device_index);
      at::ones({1}, at::TensorOptions(c10::Device(c10::kCUDA, device_index)));
      return BRAID_CUDA(cudaDeviceSynchronize());
    });
    if (!ran.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuda:", index, ": LibTorch cannot run on ", properties.name, " (compute capability ",
          properties.major, ".", properties.minor, "): ", ran.message()));
    }
    return std::make_unique<CudaDevice>(device_index, properties.name,
                                        static_cast<int64_t>(properties.totalGlobalMem),
                                        GpuId{UuidOf(properties), PciIdOf(index)}, threads);
  }

  bool Lost(int index) override {
    int outer = 0;
    cudaGetDevice(&outer);
    cudaSetDevice(index);
    const cudaError_t result = cudaStreamQuery(cudaStreamLegacy);
    cudaSetDevice(outer);
    return EndsContext(result);
  }

  absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(
      const std::vector<int>& gpus) override {
    return braid::MakeNcclClique(gpus);
  }

  absl::StatusOr<std::unique_ptr<GpuMemory>> OpenGpuMemory(const std::string& handle,
                                                           int index) override {
    return OpenIpcMemory(handle, index);
  }

 private:
  const int gpus_;
};

}  // namespace
}  // namespace braid

extern "C" braid::CudaBackend* BraidMakeCudaBackend(std::string* why) {
  int gpus = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&gpus); result != cudaSuccess) {
    *why = braid::WhyNoGpu(result);
    return nullptr;
  }
  // Lives as long as the CUDA context, which is as long as the process.
  static braid::RealCudaBackend backend(gpus);
  return &backend;
}
