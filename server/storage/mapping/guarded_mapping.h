// Memory mapped from a file that other processes may truncate at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace braid {

// Shared mapping of a range of a file. Access to a page that was truncated raises SIGBUS. The
// handler that the first mapping installs replaces the whole range by private zeros, so the thread
// continues and damaged() returns true. (Copying with pread() would be safe, too, but shared memory
// is there to avoid that copy.) SIGBUS at another address still ends the process. Thread-safe;
// other processes may change the bytes at any time.
class GuardedMapping {
 public:
  // Maps bytes [offset, offset + bytes) of `file` for reading and writing. Requires bytes > 0 and a
  // range within the file. RESOURCE_EXHAUSTED without address space or with kMaxMappings mappings.
  static absl::StatusOr<std::unique_ptr<GuardedMapping>> Map(int file, uint64_t offset,
                                                             size_t bytes);
  // Maps for reading only, for files that are open for reading only. Writing to data() is a fault.
  static absl::StatusOr<std::unique_ptr<GuardedMapping>> MapReadOnly(int file, uint64_t offset,
                                                                     size_t bytes);
  ~GuardedMapping();
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Tells the system that accesses have no order, so that it reads no pages ahead.
  void ExpectRandomAccess() const;
  // Returns true once an access met a truncated page. Such reads return zeros.
  bool damaged() const;

  static constexpr size_t kMaxMappings = 4096;

 private:
  static absl::StatusOr<std::unique_ptr<GuardedMapping>> MapWith(int protection, int file,
                                                                 uint64_t offset, size_t bytes);
  GuardedMapping(char* pages, size_t pages_bytes, size_t skip, size_t bytes, size_t slot)
      : pages_(pages), pages_bytes_(pages_bytes), data_(pages + skip), bytes_(bytes), slot_(slot) {}

  char* const pages_;
  const size_t pages_bytes_;
  char* const data_;
  const size_t bytes_;
  const size_t slot_;  // index in the handler's table
};

}  // namespace braid
