#include <memory>
#include <string>

#include "server/devices/device.h"
#include "server/devices/host_allocator.h"

namespace braid {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}

  void Enter() override {}
  // A pool of intra-op threads belongs to one thread.
  bool lendable() const override { return threads_ == 1; }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  void ResetPeakMemory() override {
    ResetHostPeak();
    before_ = HostBytes();
  }
  int64_t PeakMemory() override { return HostPeak() - before_; }
  c10::Device torch_device() const override { return c10::kCPU; }
  std::string hardware() const override { return ""; }
  int threads() const override { return threads_; }

 private:
  const int threads_;
  int64_t before_ = 0;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int threads) {
  InstallHostAllocator();
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace braid
