#include "server/devices/numerics.h"

#include <cstdlib>

#include "ATen/Context.h"

namespace braid {

void SetNumerics(bool tf32, bool deterministic) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
  if (deterministic) {
    // What cuBLAS asks for; read when its handle is made. No other thread is there yet.
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
  }
}

}  // namespace braid
