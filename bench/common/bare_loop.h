// Reference for the benchmarks: LibTorch in a loop, without a server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace braid::bench {

// Runs a TorchScript classifier with FP32 inputs. Thread-compatible.
class BareLoop {
 public:
  // `features` is the number of elements per row. The functions below throw if the file cannot be
  // loaded.
  BareLoop(const std::string& path, int64_t features);
  ~BareLoop();

  // Measures forward passes over batches of `batch` rows in `threads` parallel threads, each with
  // its own copy of the module and one intra-op thread. Returns rows per second.
  double Forward(int64_t batch, int threads, absl::Duration time);
  // Runs the same loop and returns the CPU seconds per row.
  double ForwardCpuSeconds(int64_t batch, int threads, absl::Duration time);
  // Measures training steps (cross-entropy, SGD with momentum 0.9) over one batch of `batch` rows
  // with `threads` intra-op threads. Returns rows per second.
  double Step(int64_t batch, int threads, absl::Duration time);

 private:
  struct Impl;
  struct Speed;
  std::vector<Speed> ForwardLoops(int64_t batch, int threads, absl::Duration time);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid::bench
