// What there is to compare with: LibTorch in a loop, without a server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace braid::bench {

// A TorchScript classifier of float32 rows. Thread-compatible.
class BareLoop {
 public:
  // `features`: of a row. Ends the program if the file cannot be loaded.
  BareLoop(const std::string& path, int64_t features);
  ~BareLoop();

  // Rows/s of forward passes over batches of `batch` rows, in `threads` threads side by side, each
  // with a copy of the module and one intra-op thread.
  double Forward(int64_t batch, int threads, absl::Duration time);
  // CPU seconds for each row of the same.
  double ForwardCpuSeconds(int64_t batch, int threads, absl::Duration time);
  // Rows/s of training steps (cross-entropy, SGD with momentum 0.9) over one batch of `batch` rows,
  // with `threads` intra-op threads.
  double Step(int64_t batch, int threads, absl::Duration time);

 private:
  struct Impl;
  struct Speed;
  std::vector<Speed> ForwardLoops(int64_t batch, int threads, absl::Duration time);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid::bench
