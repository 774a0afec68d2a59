// LibTorch's memory on the CPU, counted for each thread, and refused where there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "c10/core/Allocator.h"

namespace braid {

// Where there is no memory to be had, it throws c10::OutOfMemoryError, which says what was wanted
// and what there is. malloc alone would not: Linux lends more than there is, and kills who uses it.
// So large tensors are asked for only while all that live, touched or not, fit.
class HostAllocator final : public c10::Allocator {
 public:
  // root: as of ReachableHostBytes.
  explicit HostAllocator(std::filesystem::path root) : root_(std::move(root)) {}

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

 private:
  const std::filesystem::path root_;
};

// Has LibTorch allocate through a HostAllocator from now on, and malloc keep what is freed. Before
// any other use of LibTorch; later calls do nothing.
void InstallHostAllocator();

// Of the calling thread: what it allocated less what it freed, and the most of it since
// ResetHostPeak().
int64_t HostBytes();
int64_t HostPeak();
void ResetHostPeak();
// Allocations that were refused to the calling thread.
int64_t HostRefusals();

}  // namespace braid
