// Files that are there whole or not at all.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace braid {

// Writes `text` beside `path` and renames it there. Returns what the system says if it cannot.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace braid
