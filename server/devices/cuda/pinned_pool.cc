#include "server/devices/cuda/pinned_pool.h"

#include <bit>
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
  std::unique_ptr<Block> next;  // next free block
};

PinnedPool::PinnedPool(LockPages lock_pages) : lock_pages_(std::move(lock_pages)) {}

PinnedPool::~PinnedPool() = default;

c10::DataPtr PinnedPool::allocate(size_t bytes) {
  const c10::Device cpu(c10::kCPU);
  if (bytes == 0) {
    return {nullptr, cpu};
  }
  const auto size = static_cast<size_t>(std::bit_width((bytes - 1) / kPage));
  TORCH_CHECK(size < kSizes, "out of host memory: cannot allocate ", bytes, " bytes");
  std::unique_ptr<Block> block = Take(size);
  if (block == nullptr) {
    block = Make(size);
  }
  void* const data = block->data;
  return {data, block.release(), &PinnedPool::Free, cpu};
}

void PinnedPool::copy_data(void* destination, const void* source, size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

std::unique_ptr<PinnedPool::Block> PinnedPool::Take(size_t size) {
  const absl::MutexLock lock(&mu_);
  std::unique_ptr<Block> first = std::move(free_[size]);
  if (first != nullptr) {
    free_[size] = std::move(first->next);
  }
  return first;
}

std::unique_ptr<PinnedPool::Block> PinnedPool::Make(size_t size) {
  const size_t bytes = kPage << size;
  auto block = std::make_unique<Block>(
      Block{this, size, c10::GetCPUAllocator()->allocate(bytes + kPage), nullptr, nullptr});
  void* start = block->memory.get();
  size_t space = bytes + kPage;
  block->data = std::align(kPage, bytes, start, space);
  const absl::Status locked = lock_pages_(block->data, bytes);
  TORCH_CHECK(locked.ok(), locked.message());
  return block;
}

void PinnedPool::Free(void* data) {
  std::unique_ptr<Block> block(static_cast<Block*>(data));
  PinnedPool* const pool = block->pool;
  const absl::MutexLock lock(&pool->mu_);
  std::unique_ptr<Block>& first = pool->free_[block->size];
  block->next = std::move(first);
  first = std::move(block);
}

}  // namespace braid
