// Memory that is mapped from a file that others may cut off at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace braid {

// A range of a file, shared with whoever else has it mapped. To touch a page that the file has lost
// raises SIGBUS: the handler that the first mapping installs puts private zeros in place of the
// whole range, for good, so that the thread goes on, and `damaged()` tells. (To copy with pread()
// instead would be safe too, and cost the copy that shared memory is there to avoid.) A SIGBUS
// anywhere else ends the process as it would without. Thread-safe; what the bytes are is the
// sharers' business.
class GuardedMapping {
 public:
  // Bytes [offset, offset + bytes) of `file`, to be read and written; bytes > 0. They must be
  // within the file now. RESOURCE_EXHAUSTED if the system has no room, or there are kMost mappings
  // already.
  static absl::StatusOr<std::unique_ptr<GuardedMapping>> Map(int file, uint64_t offset,
                                                             size_t bytes);
  ~GuardedMapping();
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whether pages were gone when they were touched: what was read then was zeros.
  bool damaged() const;

  static constexpr size_t kMost = 4096;

 private:
  GuardedMapping(char* pages, size_t pages_bytes, size_t skip, size_t bytes, size_t slot)
      : pages_(pages), pages_bytes_(pages_bytes), data_(pages + skip), bytes_(bytes), slot_(slot) {}

  char* const pages_;
  const size_t pages_bytes_;
  char* const data_;
  const size_t bytes_;
  const size_t slot_;  // in the handler's table
};

}  // namespace braid
