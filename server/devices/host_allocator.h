// LibTorch's CPU allocator: counts memory per thread and fails cleanly when memory runs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "c10/core/Allocator.h"

namespace braid {

// Throws c10::OutOfMemoryError, with the bytes requested and available, if there is not enough
// memory. malloc alone does not fail: Linux overcommits and kills the process that touches the
// memory. So the allocator refuses a large tensor unless all live tensors, touched or not, fit.
// Thread-safe.
class HostAllocator final : public c10::Allocator {
 public:
  // `root`: see ReachableHostBytes().
  explicit HostAllocator(std::filesystem::path root) : root_(std::move(root)) {}

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

 private:
  const std::filesystem::path root_;
};

// Makes LibTorch allocate through a HostAllocator and malloc keep freed memory. Must precede any
// other use of LibTorch. Later calls do nothing.
void InstallHostAllocator();

// Bytes that the calling thread has allocated minus those that it has freed, and their maximum
// since ResetHostPeak().
int64_t HostBytes();
int64_t HostPeak();
void ResetHostPeak();
// Number of the calling thread's allocations that failed for lack of memory.
int64_t HostOutOfMemoryErrors();

}  // namespace braid
