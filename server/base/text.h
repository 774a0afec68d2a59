// Text from outside, fit for a message.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace braid {

// At most the first `most` bytes of UTF-8 `text`, cut between characters.
inline absl::string_view Excerpt(absl::string_view text, size_t most = 128) {
  if (text.size() <= most) {
    return text;
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) {
    --most;
  }
  return text.substr(0, most);
}

// The first line of `text` that is not empty: what LibTorch has to say may begin with a line break.
inline absl::string_view FirstLine(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  return text.substr(0, text.find('\n'));
}

// `text` for a line of the log: an excerpt in double quotes, with what would end line or quotes
// escaped.
inline std::string QuotedExcerpt(absl::string_view text, size_t most = 128) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(Excerpt(text, most)), "\"");
}

}  // namespace braid
