// Keeps two servers out of one data directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Held until the descriptor is closed, at the latest by the process's end. FAILED_PRECONDITION if
// another process holds it.
absl::StatusOr<FileDescriptor> LockDirectory(const std::string& directory);

}  // namespace braid
