#include "server/devices/torch_settings.h"

#include <cstdlib>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "c10/core/AutogradState.h"
#include "c10/util/Logging.h"
#include "server/devices/signal_stack.h"
#include "torch/csrc/jit/runtime/graph_executor.h"

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

void SetUpWorkerThread(int threads) {
  at::set_num_threads(threads);
  InstallSignalStacks(threads);
  torch::jit::setGraphExecutorOptimize(false);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace braid
