#include "server/devices/thread_kernels.h"

#include "torch/library.h"

namespace braid {

ThreadKernelsGuard::ThreadKernelsGuard() : include_(kThreadKernels) {}

}  // namespace braid

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
