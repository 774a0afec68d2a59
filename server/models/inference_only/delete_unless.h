// Deleter for objects that must not be destroyed after their GPU is lost.
#pragma once

#include <functional>

namespace braid {

// Leaves the object in memory if `lost` returns true. The destructor of compiled code frees memory
// with CUDA calls, which fail on a lost GPU. In packages of PyTorch 2.11 that error leaves a
// destructor and ends the process.
template <typename T>
struct DeleteUnless {
  std::function<bool()> lost;

  void operator()(T* object) const {
    if (!lost()) {
      delete object;
    }
  }
};

}  // namespace braid
