#include <memory>
#include <string>

#include "ATen/Parallel.h"
#include "server/devices/device.h"

namespace braid {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}

  void Enter() override { at::set_num_threads(threads_); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  c10::Device torch_device() const override { return c10::kCPU; }
  std::string hardware() const override { return ""; }
  int threads() const override { return threads_; }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace braid
