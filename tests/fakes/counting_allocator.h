// Allocator of host memory that counts its allocations and stands in for page-locked memory.
#pragma once

#include <atomic>
#include <cstddef>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"

namespace braid {

// Thread-safe.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++allocations_;
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
  int allocations() const { return allocations_; }

 private:
  std::atomic<int> allocations_{0};
};

}  // namespace braid
