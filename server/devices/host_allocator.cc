#include "server/devices/host_allocator.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/impl/alloc_cpu.h"
#include "c10/util/Exception.h"
#include "server/devices/host_memory.h"

namespace braid {
namespace {

// Tensors of at least this size are checked. Reading the kernel's files takes far less time than
// touching that much memory.
constexpr size_t kLarge = 32 << 20;
// Reserve for smaller tensors and for other memory of the server.
constexpr int64_t kReserve = 256 << 20;

struct Counter {
  int64_t bytes = 0;
  int64_t peak = 0;
  int64_t out_of_memory_errors = 0;
};
thread_local Counter counter;

void Count(int64_t bytes) {
  counter.bytes += bytes;
  counter.peak = std::max(counter.peak, counter.bytes);
}

// Bytes of all threads, including reservations.
std::atomic<int64_t> allocated = 0;

void Free(void* data) {
  if (data != nullptr) {
    const auto bytes = static_cast<int64_t>(malloc_usable_size(data));
    Count(-bytes);
    allocated.fetch_sub(bytes, std::memory_order_relaxed);
    c10::free_cpu(data);
  }
}

[[noreturn]] void ThrowOutOfMemory(size_t bytes, int64_t free) {
  ++counter.out_of_memory_errors;
  C10_THROW_ERROR(OutOfMemoryError,
                  absl::StrCat("out of host memory: cannot allocate ", bytes, " bytes, ",
                               std::max<int64_t>(free, 0), " are available"));
}

// Returns how many bytes all tensors together may take.
int64_t Room(const std::filesystem::path& root) { return ReachableHostBytes(root) - kReserve; }

// Counts the tensor before it is allocated, so that two threads cannot take the same memory.
void Reserve(size_t bytes, const std::filesystem::path& root) {
  const int64_t room = Room(root);
  int64_t before = allocated.load(std::memory_order_relaxed);
  do {
    const int64_t free = room - before;
    if (free < 0 || bytes > static_cast<size_t>(free)) {
      ThrowOutOfMemory(bytes, free);
    }
  } while (!allocated.compare_exchange_weak(before, before + static_cast<int64_t>(bytes),
                                            std::memory_order_relaxed));
}

}  // namespace

c10::DataPtr HostAllocator::allocate(size_t bytes) {
  int64_t reserved = 0;
  if (bytes >= kLarge) {
    Reserve(bytes, root_);
    reserved = static_cast<int64_t>(bytes);
  }
  void* data = nullptr;
  try {
    data = c10::alloc_cpu(bytes);
  } catch (const c10::Error&) {
    const int64_t others = allocated.fetch_sub(reserved, std::memory_order_relaxed) - reserved;
    ThrowOutOfMemory(bytes, Room(root_) - others);
  }
  if (data != nullptr) {
    const auto taken = static_cast<int64_t>(malloc_usable_size(data));
    Count(taken);
    allocated.fetch_add(taken - reserved, std::memory_order_relaxed);
  }
  return {data, data, &Free, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr HostAllocator::raw_deleter() const { return &Free; }

void HostAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

void InstallHostAllocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    // A training step allocates what the previous one freed, and so does a request. If malloc
    // returned that memory to the system, page faults would take a fifth of a convolutional step,
    // and longer than the copy of a large message.
    // NOLINTBEGIN(concurrency-mt-unsafe): it takes malloc's locks.
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    // NOLINTEND(concurrency-mt-unsafe)
    // Never destroyed, because tensors outlive main().
    static HostAllocator& allocator = *new HostAllocator("/");
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
  });
}

int64_t HostBytes() { return counter.bytes; }
int64_t HostPeak() { return counter.peak; }
int64_t HostOutOfMemoryErrors() { return counter.out_of_memory_errors; }
void ResetHostPeak() { counter.peak = counter.bytes; }

}  // namespace braid
