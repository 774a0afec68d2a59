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

// From here on it is looked whether a tensor fits: to read the kernel's files takes far less time
// than to touch so much.
constexpr size_t kLarge = 32 << 20;
// For smaller tensors, and for what the server has besides.
constexpr int64_t kReserve = 256 << 20;

struct Counter {
  int64_t bytes = 0;
  int64_t peak = 0;
  int64_t refusals = 0;
};
thread_local Counter counter;

void Count(int64_t bytes) {
  counter.bytes += bytes;
  counter.peak = std::max(counter.peak, counter.bytes);
}

// Of all threads, with what has been promised to one. Nothing else is ordered by it.
std::atomic<int64_t> alive = 0;

void Free(void* data) {
  if (data != nullptr) {
    const auto bytes = static_cast<int64_t>(malloc_usable_size(data));
    Count(-bytes);
    alive.fetch_sub(bytes, std::memory_order_relaxed);
    c10::free_cpu(data);
  }
}

[[noreturn]] void ThrowOutOfMemory(size_t wanted, int64_t free) {
  ++counter.refusals;
  C10_THROW_ERROR(OutOfMemoryError,
                  absl::StrCat("out of host memory: ", wanted, " bytes were wanted, ",
                               std::max<int64_t>(free, 0), " are free"));
}

// What tensors may have in all.
int64_t Room(const std::filesystem::path& root) { return ReachableHostBytes(root) - kReserve; }

// Counts the tensor as alive before it is, so that of two at a time one is refused if both do not
// fit.
void Promise(size_t bytes, const std::filesystem::path& root) {
  const int64_t room = Room(root);
  int64_t before = alive.load(std::memory_order_relaxed);
  do {
    const int64_t free = room - before;
    if (free < 0 || bytes > static_cast<size_t>(free)) {
      ThrowOutOfMemory(bytes, free);
    }
  } while (!alive.compare_exchange_weak(before, before + static_cast<int64_t>(bytes),
                                        std::memory_order_relaxed));
}

}  // namespace

c10::DataPtr HostAllocator::allocate(size_t bytes) {
  int64_t promised = 0;
  if (bytes >= kLarge) {
    Promise(bytes, root_);
    promised = static_cast<int64_t>(bytes);
  }
  void* data = nullptr;
  try {
    data = c10::alloc_cpu(bytes);
  } catch (const c10::Error&) {
    const int64_t others = alive.fetch_sub(promised, std::memory_order_relaxed) - promised;
    ThrowOutOfMemory(bytes, Room(root_) - others);
  }
  if (data != nullptr) {
    const auto taken = static_cast<int64_t>(malloc_usable_size(data));
    Count(taken);
    alive.fetch_add(taken - promised, std::memory_order_relaxed);
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
    // A step frees what the next one allocates again. Given back to the system in between, every
    // page of it would be faulted in and zeroed anew: a fifth of a convolutional step.
    // NOLINTBEGIN(concurrency-mt-unsafe): it takes malloc's locks.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    // NOLINTEND(concurrency-mt-unsafe)
    // Never destroyed: tensors outlive main().
    static HostAllocator& allocator = *new HostAllocator("/");
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
  });
}

int64_t HostBytes() { return counter.bytes; }
int64_t HostPeak() { return counter.peak; }
int64_t HostRefusals() { return counter.refusals; }
void ResetHostPeak() { counter.peak = counter.bytes; }

}  // namespace braid
