// Random numbers that depend only on a seed.
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

// Makes the random numbers that the calling thread draws on `device` in a scope a function of
// `seed`, independent of other threads with guards. An inner guard replaces an outer one.
//
// On a CPU, operators draw from the guard's own generator unless they are given another one. On a
// GPU, some kernels can only draw from the GPU's default generator. Around each operator that
// draws, the guard sets that generator to the state after its own last draw and locks out the
// operators of other guards. A thread that draws without a guard at the same time, for example
// while it loads a model, may change the numbers.
//
// The guard does not apply to threads that LibTorch starts for a backward pass or a fork.
class RandomSeedGuard {
 public:
  RandomSeedGuard(c10::Device device, uint64_t seed);
  // For a device whose kernels can only draw from `shared`.
  RandomSeedGuard(at::Generator shared, uint64_t seed);
  ~RandomSeedGuard();
  RandomSeedGuard(const RandomSeedGuard&) = delete;
  RandomSeedGuard& operator=(const RandomSeedGuard&) = delete;

  // Calls `op`, which draws, on the thread that holds the guard.
  void Draw(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
            std::vector<c10::IValue>* stack);

 private:
  RandomSeedGuard(at::Generator generator, uint64_t seed, bool shared);

  at::Generator generator_;
  const bool shared_;
  const uint64_t seed_;
  // For a shared generator.
  at::Tensor state_;      // state after the guard's last draw; undefined before the first
  bool drawing_ = false;  // true within an operator that draws
  RandomSeedGuard* const outer_;
  const ThreadKernelsGuard kernels_;
};

}  // namespace braid
