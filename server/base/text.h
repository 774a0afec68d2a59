// Helpers that make external text safe for messages.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace braid {

// Returns at most the first `max_bytes` bytes of UTF-8 `text`, cut between characters.
inline absl::string_view Excerpt(absl::string_view text, size_t max_bytes = 128) {
  if (text.size() <= max_bytes) {
    return text;
  }
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0) == 0x80) {
    --max_bytes;
  }
  return text.substr(0, max_bytes);
}

// Returns the first line of `text` that is not empty: LibTorch's messages may start with a newline.
inline absl::string_view FirstLine(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  return text.substr(0, text.find('\n'));
}

// Returns an excerpt of `text` in double quotes for a log line. Quotes and control characters are
// escaped.
inline std::string QuotedExcerpt(absl::string_view text, size_t max_bytes = 128) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(Excerpt(text, max_bytes)), "\"");
}

}  // namespace braid
