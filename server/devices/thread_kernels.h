// Kernels that stand before LibTorch's on one thread at a time.
//
// A kernel that is registered under kThreadKernels (TORCH_LIBRARY_IMPL(aten, DeferredInit, …)) is
// called, instead of LibTorch's, by a thread that holds a ThreadKernelsGuard. All other operators,
// and all operators on other threads, run as if there were none: nothing is overridden.
#pragma once

#include "c10/core/DispatchKey.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace braid {

// LibTorch keeps this key for modes that others bring, before autograd and autocast, and registers
// nothing under it.
inline constexpr c10::DispatchKey kThreadKernels = c10::DispatchKey::DeferredInit;

// For its scope, on the calling thread.
class ThreadKernelsGuard {
 public:
  ThreadKernelsGuard();

 private:
  const c10::impl::IncludeDispatchKeyGuard include_;
};

// What a kernel that was called with `keys` redispatches with, to come to LibTorch's.
inline c10::DispatchKeySet BelowThreadKernels(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kThreadKernels);
}

}  // namespace braid
