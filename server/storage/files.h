// Durable changes of the data directory: they are on the disk when a function returns. Errors name
// the path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Creates `directory` and its missing parents.
absl::Status MakeDirectories(const std::string& directory);

// Makes the directory entries of `directory` durable.
absl::Status SyncDirectory(const std::string& directory);

// Renames within one directory.
absl::Status RenameDurably(const std::string& from, const std::string& to);

// Removes `path` recursively. A missing path is not an error.
absl::Status RemoveTree(const std::string& path);

// Replaces the file atomically.
absl::Status WriteFileDurably(const std::string& path, absl::string_view bytes);

// Returns the names of the directories in `directory`, sorted.
absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory);

}  // namespace braid
