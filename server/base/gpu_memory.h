// Memory of a GPU that another process has allocated and shares.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// Open as long as the object lives. Thread-safe; what the bytes are is the sharers' business.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  // Of the whole allocation.
  virtual size_t bytes() const = 0;
  // Copies between host memory and bytes [offset, offset + bytes), which are within it. Returns
  // when that is done.
  virtual absl::Status Read(size_t offset, size_t bytes, void* to) const = 0;
  virtual absl::Status Write(size_t offset, size_t bytes, const void* from) const = 0;
};

// Opens the allocation that another process has exported as `handle`, on the GPU `device`, which
// there is. INVALID_ARGUMENT if it cannot be opened there.
using GpuMemoryOpener = std::function<absl::StatusOr<std::unique_ptr<GpuMemory>>(
    const std::string& handle, int device)>;

// How GPU memory of other processes is opened, on how many GPUs; none where there is no GPU.
struct GpuMemorySource {
  int gpus = 0;
  GpuMemoryOpener open;
};

}  // namespace braid
