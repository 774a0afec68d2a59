#include "server/devices/cuda/pinned_pool.h"

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"

namespace braid {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

struct PinnedPool::Block {
  PinnedPool* pool;
  size_t size;          // index in free_
  c10::DataPtr memory;  // one page longer than the data, which is page-aligned
  void* data;
  Block* next = nullptr;  // next free block
};

c10::DataPtr PinnedPool::allocate(size_t bytes) {
  const c10::Device cpu(c10::kCPU);
  if (bytes == 0) {
    return {nullptr, cpu};
  }
  const auto size = static_cast<size_t>(std::bit_width((bytes - 1) / kPage));
  TORCH_CHECK(size < kSizes, "out of host memory: cannot allocate ", bytes, " bytes");
  Block* block = Take(size);
  if (block == nullptr) {
    block = Make(size);
  }
  return {block->data, block, &PinnedPool::Free, cpu};
}

void PinnedPool::copy_data(void* destination, const void* source, size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

PinnedPool::Block* PinnedPool::Take(size_t size) {
  const absl::MutexLock lock(&mu_);
  Block* const first = free_[size];
  if (first != nullptr) {
    free_[size] = first->next;
  }
  return first;
}

PinnedPool::Block* PinnedPool::Make(size_t size) {
  const size_t bytes = kPage << size;
  auto block = std::make_unique<Block>(
      Block{this, size, c10::GetCPUAllocator()->allocate(bytes + kPage), nullptr});
  const auto start = reinterpret_cast<uintptr_t>(block->memory.get());
  block->data = reinterpret_cast<void*>((start + kPage - 1) / kPage * kPage);
  const absl::Status locked = lock_pages_(block->data, bytes);
  TORCH_CHECK(locked.ok(), locked.message());
  return block.release();
}

void PinnedPool::Free(void* data) {
  auto* const block = static_cast<Block*>(data);
  const absl::MutexLock lock(&block->pool->mu_);
  block->next = block->pool->free_[block->size];
  block->pool->free_[block->size] = block;
}

}  // namespace braid
