// Shared memory regions, on the host and on GPUs, that clients have registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/gpu_memory.h"
#include "server/storage/mapping/guarded_mapping.h"

namespace braid {

// Range of a POSIX shared memory object, or GPU memory. Exists until it is unregistered and no
// request uses it. Immutable.
struct SharedRegion {
  std::string name;
  size_t bytes = 0;
  // For a POSIX object; nullptr for GPU memory.
  std::unique_ptr<GuardedMapping> mapping;
  std::string key;
  uint64_t offset = 0;  // of the region in the object
  // For GPU memory; nullptr for a POSIX object.
  std::unique_ptr<GpuMemory> gpu_memory;
  int gpu = 0;
};

enum class RegionKind { kSystem, kGpu };

// Range of a region. `region` is nullptr if there is none.
struct SharedSlice {
  std::shared_ptr<const SharedRegion> region;
  size_t offset = 0;  // in the region
  size_t bytes = 0;

  // Returns the address of the bytes, or nullptr for GPU memory.
  char* data() const {
    return region->mapping == nullptr ? nullptr : region->mapping->data() + offset;
  }
  // Copies all bytes to host memory. Errors come from the GPU.
  absl::Status Read(void* to) const;
  // Copies from host memory to bytes [at, at + count), which must be within the slice.
  absl::Status Write(size_t at, size_t count, const void* from) const;
};

// Owned by the server. A name is unique among regions of both kinds. Thread-safe.
class SharedRegions {
 public:
  explicit SharedRegions(GpuMemorySource gpu_memory = {}) : gpu_memory_(std::move(gpu_memory)) {}

  // Returns true if GPU memory can be registered.
  bool has_gpus() const { return gpu_memory_.gpus > 0; }

  // Maps bytes [offset, offset + bytes) of the shared memory object `key`, a name for shm_open().
  // INVALID_ARGUMENT for an invalid name, an invalid or reserved key, and a range that is empty or
  // not within the object; NOT_FOUND for a key that cannot be opened; ALREADY_EXISTS for a name
  // that is in use; RESOURCE_EXHAUSTED with GuardedMapping::kMaxMappings regions.
  absl::Status RegisterSystem(const std::string& name, const std::string& key, uint64_t offset,
                              uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens the first `bytes` bytes of the allocation that another process exported as `handle` from
  // GPU `gpu`. INVALID_ARGUMENT for an invalid name, an unknown GPU, a handle that cannot be
  // opened, and for 0 bytes or more than the allocation has; ALREADY_EXISTS and RESOURCE_EXHAUSTED
  // as above.
  absl::Status RegisterGpu(const std::string& name, const std::string& handle, int64_t gpu,
                           uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Unregisters a region of `kind`, or all of them if `name` is empty. An unknown name is not an
  // error.
  void Unregister(RegionKind kind, absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the region with `kind` and `name`, or all of the kind if `name` is empty. NOT_FOUND for
  // an unknown name.
  absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> List(
      RegionKind kind, absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns a range of a region. INVALID_ARGUMENT that names `field` if the region is unknown or
  // truncated or the range is not within it.
  absl::StatusOr<SharedSlice> Find(absl::string_view name, int64_t offset, int64_t bytes,
                                   absl::string_view field) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status CheckFree(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const GpuMemorySource gpu_memory_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<const SharedRegion>, std::less<>> regions_
      ABSL_GUARDED_BY(mu_);
};

// Returns INVALID_ARGUMENT if an access found that the region of `slice` was truncated.
absl::Status CheckWhole(const SharedSlice& slice);

}  // namespace braid
