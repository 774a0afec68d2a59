// LibTorch's settings of threads that compute for a device.
#pragma once

namespace braid {

// Sets the calling thread up: `threads` intra-op threads (at least 1), TorchScript without its
// profiling optimizer, whose first calls at each shape are ten times slower than later ones, and
// backward passes on the calling thread instead of LibTorch's own threads.
void SetUpWorkerThread(int threads);

}  // namespace braid
