// Random numbers that depend on a seed alone.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Generator.h"
#include "c10/core/Device.h"
#include "server/devices/thread_kernels.h"

namespace braid {

// For its scope, what the calling thread draws on `device` follows from `seed`.
//
// On a CPU it comes from a generator of the guard's own, whatever other threads draw, unless the
// operator was given one; guards nest. A backward pass that LibTorch hands to another thread, and
// what a model forks, draw from the process's generator.
// On a GPU the guard only seeds the device's generator, because LibTorch's fused kernels know no
// other: it stays where the draws leave it, and workers that share a GPU share it, as does a model
// that draws while it is loaded.
class RandomSeedGuard {
 public:
  RandomSeedGuard(c10::Device device, uint64_t seed);
  ~RandomSeedGuard();
  RandomSeedGuard(const RandomSeedGuard&) = delete;
  RandomSeedGuard& operator=(const RandomSeedGuard&) = delete;

 private:
  at::Generator generator_;  // undefined for a GPU
  const at::Generator* outer_ = nullptr;
  std::optional<ThreadKernelsGuard> kernels_;
};

}  // namespace braid
