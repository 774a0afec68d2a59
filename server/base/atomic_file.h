// Atomic writes of small files.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace braid {

// Writes `text` to a temporary file and renames it to `path`. Not durable.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace braid
