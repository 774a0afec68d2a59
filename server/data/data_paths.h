// Resolves client-supplied paths against the allowed root directories.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Returns the path of data without symbolic links, "." and "..". A relative path starts at `start`,
// or, if that is empty, at the first root in which it exists. `field` names the path in messages.
// INVALID_ARGUMENT if it leaves the roots, is too long or contains a symlink loop, NOT_FOUND if it
// does not exist, FAILED_PRECONDITION without roots.
absl::StatusOr<std::string> ResolveDataPath(const std::string& path,
                                            const std::vector<std::string>& roots,
                                            absl::string_view field, const std::string& start = "");

// Returns the absolute path of an output, which need not exist, without symbolic links, "." and
// "..". Keeps a '/' at the end. Relative paths start at `root`. INVALID_ARGUMENT if it leaves
// `root`, is empty or too long or contains a symlink loop.
absl::StatusOr<std::string> ResolveOutputPath(const std::string& path, const std::string& root,
                                              absl::string_view field);

// Returns true if `path` exists and, with its links resolved, is below one of the roots.
bool ResolvesBelowAny(const std::string& path, const std::vector<std::string>& roots);

// Returns the INVALID_ARGUMENT error for a path that is not below the roots.
absl::Status OutsideRootsError(absl::string_view path, const std::vector<std::string>& roots);

}  // namespace braid
