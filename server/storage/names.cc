#include "server/storage/names.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "nlohmann/json.hpp"

namespace braid {

bool IsUtf8(absl::string_view text) {
  using Json = nlohmann::json;
  // What replaces a byte that makes no sense makes the text another one.
  const std::string copy(text);
  return Json::parse(Json(copy).dump(-1, ' ', false, Json::error_handler_t::replace)) == copy;
}

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}

bool IsFolderName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\0'; }) &&
         IsUtf8(name);
}

}  // namespace braid
