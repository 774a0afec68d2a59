// GPUs that do not exist: workers on them run, but no tensor can be made.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/util/Exception.h"
#include "server/base/status.h"
#include "server/devices/cuda_backend.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_nccl_clique.h"

namespace braid {

class FakeCudaBackend final : public CudaBackend {
 public:
  explicit FakeCudaBackend(int gpus) : gpus_(gpus) {}

  int gpus() const override { return gpus_; }
  int compute_capability(int) const override { return 90; }
  bool Lost(int) override { return false; }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int index, int threads) override {
    BRAID_RETURN_IF_ERROR(device_error);
    return std::make_unique<FakeDevice>(
        c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)), threads);
  }
  // Throws without `nccl`, as LibTorch does if a GPU is lost.
  absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(const std::vector<int>&) override {
    TORCH_CHECK(nccl != nullptr, "CUDA error: device-side assert triggered");
    ++cliques;
    return std::make_unique<FakeNcclClique>(nccl);
  }
  absl::StatusOr<std::unique_ptr<GpuMemory>> OpenGpuMemory(const std::string&, int) override {
    return absl::UnimplementedError("a fake GPU has no memory");
  }

  absl::Status device_error;  // result of MakeDevice() if it is an error
  FakeNccl* nccl = nullptr;   // outlives its cliques
  int cliques = 0;            // number of calls of MakeNcclClique(), which nccl_mutex() serializes

 private:
  const int gpus_;
};

}  // namespace braid
