// Lock that keeps two servers from using one data directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Locks `directory` until the descriptor is closed or the process ends. FAILED_PRECONDITION if
// another process holds the lock.
absl::StatusOr<FileDescriptor> LockDirectory(const std::string& directory);

}  // namespace braid
