// GPU memory that another process has allocated and exported.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// Closed when it is destroyed. Thread-safe; the other process may change the bytes at any time.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  // Size of the allocation.
  virtual size_t bytes() const = 0;
  // Copy bytes [offset, offset + bytes), which must be within the allocation, to or from host
  // memory. Block until the copy has ended.
  virtual absl::Status Read(size_t offset, size_t bytes, void* to) const = 0;
  virtual absl::Status Write(size_t offset, size_t bytes, const void* from) const = 0;
};

// Opens the allocation that another process exported as `handle` on the existing GPU `device`.
// INVALID_ARGUMENT if it cannot be opened.
using GpuMemoryOpener = std::function<absl::StatusOr<std::unique_ptr<GpuMemory>>(
    const std::string& handle, int device)>;

// Access to GPU memory of other processes. `gpus` is 0 and `open` empty without a GPU.
struct GpuMemorySource {
  int gpus = 0;
  GpuMemoryOpener open;
};

}  // namespace braid
