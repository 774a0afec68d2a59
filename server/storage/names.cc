#include "server/storage/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace braid {

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}

bool IsFolderName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\0'; });
}

}  // namespace braid
