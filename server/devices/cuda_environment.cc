#include "server/devices/cuda_environment.h"

#include <cstdlib>
#include <iterator>
#include <system_error>

namespace braid {

void SetCudaEnvironment(const std::filesystem::path& root) {
  std::error_code none;
  const std::filesystem::directory_iterator gpus(root / "proc/driver/nvidia/gpus", none);
  if (none || std::distance(begin(gpus), end(gpus)) < 2) {
    return;
  }
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread reads the environment.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  // LibTorch reads this older name first.
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr) {
    setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace braid
