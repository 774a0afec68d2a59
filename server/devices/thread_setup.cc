#include "server/devices/thread_setup.h"

#include "ATen/Parallel.h"
#include "c10/core/AutogradState.h"
#include "server/devices/signal_stack.h"
#include "torch/csrc/jit/runtime/graph_executor.h"

namespace braid {

void SetUpWorkerThread(int threads) {
  at::set_num_threads(threads);
  UseSignalStacks(threads);
  torch::jit::setGraphExecutorOptimize(false);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace braid
