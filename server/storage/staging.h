// Directories that are created, replaced and removed atomically.
//
// A directory is written as ".tmp-<name>" next to its place and renamed when it is complete. The
// directory that it replaces is ".old-<name>" in between. A directory that is removed is first
// renamed to ".tmp-<name>". So after a crash and RemoveLeftovers(), either the old or the new
// directory has the name.
//
// Not thread-safe for the same `parent`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// Creates an empty ".tmp-<name>" and returns its path.
absl::StatusOr<std::string> Stage(const std::string& parent, const std::string& name);

// Renames the directory of Stage() to its name. Its files must be durable.
absl::Status PutInPlace(const std::string& parent, const std::string& name);

// Removes the directory of Stage(). Ignores errors.
void Unstage(const std::string& parent, const std::string& name);

// Removes a directory with its contents.
absl::Status RemoveWhole(const std::string& parent, const std::string& name);

// Completes what a crash has interrupted.
absl::Status RemoveLeftovers(const std::string& parent);

}  // namespace braid
