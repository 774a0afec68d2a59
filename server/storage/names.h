// Names that are fit to be a directory's or a file's.
#pragma once

#include "absl/strings/string_view.h"

namespace braid {

// 1 to 128 letters, digits, '_', '-' and '.', the first no '.'.
bool IsPlainName(absl::string_view name);

// Anything that a directory can be called, but for what begins with a '.': 1 to 255 bytes, no '/'.
bool IsFolderName(absl::string_view name);

}  // namespace braid
