// Names that are valid for files and directories.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace braid {

// Returns true if `text` is valid UTF-8, as messages and JSON files require.
bool IsUtf8(absl::string_view text);

// Returns true for 1 to 128 letters, digits, '_', '-' and '.' that do not start with '.'.
bool IsPlainName(absl::string_view name);

// Returns `name` if it is plain, else a plain name that is derived from it and unique.
std::string PlainName(absl::string_view name);

// Returns true for a plain name with a letter, which cannot be a version number.
bool IsVersionLabel(absl::string_view name);

// Returns true for 1 to 255 bytes of UTF-8 without '/' that do not start with '.'.
bool IsFolderName(absl::string_view name);

}  // namespace braid
