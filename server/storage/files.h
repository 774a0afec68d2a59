// Changes to the data directory that are on the disk when they return. Errors name the path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Makes `directory` and what is missing above it.
absl::Status MakeDirectories(const std::string& directory);

// Has the disk hold the names that are in `directory`.
absl::Status SyncDirectory(const std::string& directory);

// Both in one directory.
absl::Status RenameDurably(const std::string& from, const std::string& to);

// With all that is in it, if it is there.
absl::Status RemoveTree(const std::string& path);

// Replaces the file whole or not at all.
absl::Status WriteFileDurably(const std::string& path, absl::string_view bytes);

// The names of the directories in `directory`, in their order.
absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory);

}  // namespace braid
