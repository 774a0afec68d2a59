#include "server/devices/host_allocator.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/impl/alloc_cpu.h"
#include "c10/util/Exception.h"

namespace braid {
namespace {

struct Counter {
  int64_t bytes = 0;
  int64_t peak = 0;
};
thread_local Counter counter;

void Count(int64_t bytes) {
  counter.bytes += bytes;
  counter.peak = std::max(counter.peak, counter.bytes);
}

void Free(void* data) {
  if (data != nullptr) {
    Count(-static_cast<int64_t>(malloc_usable_size(data)));
    c10::free_cpu(data);
  }
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    try {
      data = c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {
      C10_THROW_ERROR(OutOfMemoryError,
                      absl::StrCat("out of host memory: ", bytes, " bytes were wanted, ",
                                   FreeHostBytes(), " are free"));
    }
    if (data != nullptr) {
      Count(static_cast<int64_t>(malloc_usable_size(data)));
    }
    return {data, data, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

// The number in `path`, or after `key` in it; `missing` if there is none.
int64_t ReadNumber(const std::string& path, const std::string& key, int64_t missing) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty() && word != key) {
      continue;
    }
    int64_t value = 0;
    if (!key.empty()) {
      file >> word;
    }
    return absl::SimpleAtoi(word, &value) ? value : missing;
  }
  return missing;
}

}  // namespace

void InstallHostAllocator() {
  // A step frees what the next one allocates again. Given back to the system in between, every page
  // of it would be faulted in and zeroed anew: a fifth of a convolutional step.
  // NOLINTBEGIN(concurrency-mt-unsafe): it takes malloc's locks.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // NOLINTEND(concurrency-mt-unsafe)
  // Never destroyed: tensors outlive main().
  static HostAllocator& allocator = *new HostAllocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

int64_t HostBytes() { return counter.bytes; }
int64_t HostPeak() { return counter.peak; }
void ResetHostPeak() { counter.peak = counter.bytes; }

int64_t FreeHostBytes() {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const int64_t machine = ReadNumber("/proc/meminfo", "MemAvailable:", 0) * 1024;
  const int64_t limit = ReadNumber("/sys/fs/cgroup/memory.max", "", kUnlimited);
  const int64_t used = ReadNumber("/sys/fs/cgroup/memory.current", "", 0);
  return std::min(machine, limit == kUnlimited ? limit : std::max<int64_t>(limit - used, 0));
}

}  // namespace braid
