// The regions of their shared memory that clients have named to the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/storage/guarded_mapping.h"

namespace braid {

// Part of a POSIX shared memory object. Lives until it is unregistered and nobody uses it.
struct SharedRegion {
  std::string name;
  std::string key;
  uint64_t offset = 0;  // of the region in the object
  std::unique_ptr<GuardedMapping> mapping;
};

// Bytes of a region; empty where no region is meant.
struct SharedSlice {
  std::shared_ptr<const SharedRegion> region;
  size_t offset = 0;  // in the region
  size_t bytes = 0;

  char* data() const { return region->mapping->data() + offset; }
};

// Thread-safe; a region is opened and closed under its lock.
class SharedRegions {
 public:
  // Maps bytes [offset, offset + bytes) of the object that shm_open() knows as `key`.
  // INVALID_ARGUMENT for a name that is none, a key that is not "/…" without a second slash or that
  // is of a kind that this process uses itself, and a range that is empty or not within the object;
  // NOT_FOUND for a key that cannot be opened, whatever the cause; ALREADY_EXISTS for a name that
  // is taken.
  absl::Status Register(const std::string& name, const std::string& key, uint64_t offset,
                        uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a region, or all if `name` is empty. One that is unknown is forgotten already.
  void Unregister(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // The region of that name, all if `name` is empty. NOT_FOUND if there is none.
  absl::StatusOr<std::vector<std::shared_ptr<const SharedRegion>>> List(
      absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);

  // INVALID_ARGUMENT naming `field` for a region that is unknown or damaged, and for a range that
  // is not within it.
  absl::StatusOr<SharedSlice> Find(absl::string_view name, int64_t offset, int64_t bytes,
                                   absl::string_view field) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<const SharedRegion>, std::less<>> regions_
      ABSL_GUARDED_BY(mu_);
};

// INVALID_ARGUMENT if pages of the slice's region were gone when they were touched.
absl::Status CheckWhole(const SharedSlice& slice);

}  // namespace braid
