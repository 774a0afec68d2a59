// Directories that come and go whole.
//
// One is made as ".tmp-<name>" beside its place, and renamed when all is in it. What it replaces is
// ".old-<name>" meanwhile. One that goes is renamed to ".tmp-<name>" first. So a crash leaves,
// under the name, the old directory or the new one, once RemoveLeftovers has run.
//
// Not to be used on one `parent` by two threads at a time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// Makes ".tmp-<name>", empty, and returns its path.
absl::StatusOr<std::string> Stage(const std::string& parent, const std::string& name);

// Gives what Stage() made its name. The files in it are on the disk already.
absl::Status PutInPlace(const std::string& parent, const std::string& name);

// Removes what Stage() made, as far as it can.
void Unstage(const std::string& parent, const std::string& name);

absl::Status RemoveWhole(const std::string& parent, const std::string& name);

// Ends what a crash has interrupted.
absl::Status RemoveLeftovers(const std::string& parent);

}  // namespace braid
