// Page-locked host memory, which a GPU copies from and to by itself.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/Allocator.h"

namespace braid {

// Keeps what is freed for the next tensor of about that size, and makes no CUDA call to free it:
// LibTorch's own pool records events then, which fails, in a destructor, once a GPU is lost. So
// what copies from or to a tensor has to end before the tensor is freed.
//
// Its memory comes from LibTorch's CPU allocator, which counts and limits it. Thread-safe. Has to
// outlive its tensors.
class PinnedPool final : public c10::Allocator {
 public:
  // Locks pages [memory, memory + bytes) for all GPUs.
  using LockPages = std::function<absl::Status(void* memory, size_t bytes)>;

  explicit PinnedPool(LockPages lock_pages) : lock_pages_(std::move(lock_pages)) {}

  // Throws c10::OutOfMemoryError, or c10::Error if pages cannot be locked.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

 private:
  struct Block;
  static constexpr size_t kSizes = 48;  // of blocks: 4096 << 0, 1, 2, …

  // nullptr if none is free.
  Block* Take(size_t size) ABSL_LOCKS_EXCLUDED(mu_);
  Block* Make(size_t size);
  static void Free(void* block);

  const LockPages lock_pages_;
  absl::Mutex mu_;
  std::array<Block*, kSizes> free_ ABSL_GUARDED_BY(mu_) = {};  // lists
};

}  // namespace braid
