// The regions of their shared memory, host's and GPUs', that clients have named to the server.
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
#include "server/storage/guarded_mapping.h"

namespace braid {

// Part of a POSIX shared memory object, or memory of a GPU. Lives until it is unregistered and
// nobody uses it.
struct SharedRegion {
  std::string name;
  size_t bytes = 0;
  // Of a POSIX object; null for GPU memory.
  std::unique_ptr<GuardedMapping> mapping;
  std::string key;
  uint64_t offset = 0;  // of the region in the object
  // Of a GPU; null for a POSIX object.
  std::unique_ptr<GpuMemory> gpu_memory;
  int gpu = 0;
};

enum class RegionKind { kSystem, kGpu };

// Bytes of a region; empty where no region is meant.
struct SharedSlice {
  std::shared_ptr<const SharedRegion> region;
  size_t offset = 0;  // in the region
  size_t bytes = 0;

  // Where they can be used in place; null for those of a GPU.
  char* data() const {
    return region->mapping == nullptr ? nullptr : region->mapping->data() + offset;
  }
  // Copies all of them to host memory. Errors are the GPU's.
  absl::Status Read(void* to) const;
  // Copies to bytes [at, at + count) of them, which are within them.
  absl::Status Write(size_t at, size_t count, const void* from) const;
};

// Thread-safe. Names are of all regions, whatever their kind.
class SharedRegions {
 public:
  explicit SharedRegions(GpuMemorySource gpu_memory = {}) : gpu_memory_(std::move(gpu_memory)) {}

  // Whether there are GPUs whose memory can be registered.
  bool has_gpus() const { return gpu_memory_.gpus > 0; }

  // Maps bytes [offset, offset + bytes) of the object that shm_open() knows as `key`.
  // INVALID_ARGUMENT for a name that is none, a key that is not "/…" without a second slash or that
  // is of a kind that this process uses itself, and a range that is empty or not within the object;
  // NOT_FOUND for a key that cannot be opened, whatever the cause; ALREADY_EXISTS for a name that
  // is taken; RESOURCE_EXHAUSTED if there are GuardedMapping::kMost regions.
  absl::Status RegisterSystem(const std::string& name, const std::string& key, uint64_t offset,
                              uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens the first `bytes` of the allocation that its process has exported as `handle` from GPU
  // `gpu`. INVALID_ARGUMENT for a name that is none, a GPU that is not there, a handle that cannot
  // be opened, and for 0 bytes or more than were allocated; ALREADY_EXISTS and RESOURCE_EXHAUSTED
  // as above.
  absl::Status RegisterGpu(const std::string& name, const std::string& handle, int64_t gpu,
                           uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a region of that kind, or all of them if `name` is empty. One that is unknown is
  // forgotten already.
  void Unregister(RegionKind kind, absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // The region of that kind and name, all of the kind if `name` is empty. NOT_FOUND if there is
  // none.
  absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> List(
      RegionKind kind, absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);

  // INVALID_ARGUMENT naming `field` for a region that is unknown or damaged, and for a range that
  // is not within it.
  absl::StatusOr<SharedSlice> Find(absl::string_view name, int64_t offset, int64_t bytes,
                                   absl::string_view field) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status CheckFree(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const GpuMemorySource gpu_memory_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<const SharedRegion>, std::less<>> regions_
      ABSL_GUARDED_BY(mu_);
};

// INVALID_ARGUMENT if pages of the slice's region were gone when they were touched.
absl::Status CheckWhole(const SharedSlice& slice);

}  // namespace braid
