#include "server/devices/torch_settings.h"

#include <cstdlib>

#include "ATen/Context.h"
#include "c10/util/Logging.h"

namespace braid {

void SetNumerics(bool tf32, bool deterministic) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
  if (deterministic) {
    // Required by cuBLAS for determinism. There is no other thread yet.
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
  }
}

void LimitTorchLog() { FLAGS_caffe2_log_level = c10::GLOG_ERROR; }

}  // namespace braid
