// Kernels that take precedence over LibTorch's on individual threads.
//
// A kernel that is registered under kThreadKernels (TORCH_LIBRARY_IMPL(aten, DeferredInit, …)) is
// called instead of LibTorch's on threads that hold a ThreadKernelsGuard. Other operators and other
// threads are not affected.
#pragma once

#include "c10/core/DispatchKey.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace braid {

// LibTorch reserves this key, which precedes autograd and autocast, for external modes and
// registers nothing under it.
inline constexpr c10::DispatchKey kThreadKernels = c10::DispatchKey::DeferredInit;

// Enables the kernels on the calling thread in a scope.
class ThreadKernelsGuard {
 public:
  ThreadKernelsGuard();

 private:
  const c10::impl::IncludeDispatchKeyGuard include_;
};

// Returns the keys with which a kernel that was called with `keys` redispatches to LibTorch's.
inline c10::DispatchKeySet BelowThreadKernels(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kThreadKernels);
}

}  // namespace braid
