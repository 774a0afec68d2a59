// LibTorch's per-thread settings, which every thread that computes for a device needs.
#pragma once

namespace braid {

// For the calling thread: `threads` intra-op threads (at least 1), TorchScript without its
// profiling optimizer (whose first calls at each shape are ten times slower than the ones after,
// which a server cannot offer), and backward passes on the thread that asks for them instead of
// LibTorch's own.
void SetUpWorkerThread(int threads);

}  // namespace braid
