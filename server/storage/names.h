// Names that are fit to be a directory's or a file's.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace braid {

// Whether it is text that can go out in a message or a JSON file.
bool IsUtf8(absl::string_view text);

// 1 to 128 letters, digits, '_', '-' and '.', the first no '.'.
bool IsPlainName(absl::string_view name);

// `name` if it is plain; else a plain name made of it, unique for each `name`.
std::string PlainName(absl::string_view name);

// Anything that a directory can be called, but for what begins with a '.', and for what is no text,
// as names go out in messages: 1 to 255 bytes of UTF-8, no '/'.
bool IsFolderName(absl::string_view name);

}  // namespace braid
