// Random numbers that depend on a seed alone.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "c10/core/DispatchKeySet.h"
#include "server/devices/thread_kernels.h"

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace braid {

// For its scope, what the calling thread draws on `device` follows from `seed`, whatever threads
// with guards of their own draw. An inner guard takes the place of an outer one.
//
// On a CPU, operators draw from a generator of the guard's own, unless they are given another one.
// On a GPU, some kernels draw from the GPU's one generator alone. Around each operator that draws,
// the guard sets that generator to where its own draws have left it, and excludes the operators of
// other guards. A thread without a guard that draws at the same time, such as one that loads a
// model, may shift these draws.
//
// A backward pass that LibTorch hands to another thread, and what a model forks, draw as if there
// were no guard.
class RandomSeedGuard {
 public:
  RandomSeedGuard(c10::Device device, uint64_t seed);
  // For a device whose kernels draw from `shared` alone.
  RandomSeedGuard(at::Generator shared, uint64_t seed);
  ~RandomSeedGuard();
  RandomSeedGuard(const RandomSeedGuard&) = delete;
  RandomSeedGuard& operator=(const RandomSeedGuard&) = delete;

  // Calls `op`, which draws, for the thread that holds the guard.
  void Draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
            std::vector<c10::IValue>* stack);

 private:
  RandomSeedGuard(at::Generator generator, uint64_t seed, bool shared);

  at::Generator generator_;
  const bool shared_;
  const uint64_t seed_;
  // Of a shared generator.
  at::Tensor state_;      // after the guard's last draw; undefined before the first
  bool drawing_ = false;  // within an operator that the generator was set for
  RandomSeedGuard* const outer_;
  const ThreadKernelsGuard kernels_;
};

}  // namespace braid
