// Pool of page-locked host memory, which GPUs copy from and to asynchronously.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/Allocator.h"

namespace braid {

// Keeps freed blocks for later tensors of a similar size. Freeing makes no CUDA call: LibTorch's
// own pool records events, which throws in a destructor once a GPU is lost. So copies from or to a
// tensor must end before it is freed.
//
// Memory comes from LibTorch's CPU allocator, which counts and limits it. Thread-safe. Must outlive
// its tensors. One for GPUs must never be destroyed, because the pages stay locked.
class PinnedPool final : public c10::Allocator {
 public:
  // Locks pages [memory, memory + bytes) for all GPUs.
  using LockPages = std::function<absl::Status(void* memory, size_t bytes)>;

  explicit PinnedPool(LockPages lock_pages);
  ~PinnedPool() override;

  // Throws c10::OutOfMemoryError without memory and c10::Error if pages cannot be locked.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

 private:
  struct Block;
  static constexpr size_t kSizes = 48;  // block sizes: 4096 bytes << 0, 1, 2, …

  // Returns nullptr if no block is free.
  std::unique_ptr<Block> Take(size_t size) ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<Block> Make(size_t size);
  static void Free(void* data);

  const LockPages lock_pages_;
  absl::Mutex mu_;
  std::array<std::unique_ptr<Block>, kSizes> free_ ABSL_GUARDED_BY(mu_);  // lists, by size
};

}  // namespace braid
