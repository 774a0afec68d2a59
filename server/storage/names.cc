#include "server/storage/names.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/storage/checksum.h"

namespace braid {
namespace {

bool IsPlainCharacter(unsigned char c) {
  return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  // Invalid bytes are replaced, which changes the text.
  const std::string copy(text);
  return nlohmann::json::parse(nlohmann::json(copy).dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace)) == copy;
}

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), IsPlainCharacter);
}

std::string PlainName(absl::string_view name) {
  constexpr size_t kKept = 100;
  constexpr size_t kDigits = 8;
  if (IsPlainName(name)) {
    return std::string(name);
  }
  std::string plain(name.substr(0, kKept));
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return !IsPlainCharacter(c); }, '_');
  if (plain.empty() || plain.front() == '.') {
    plain.insert(0, 1, '_');
  }
  // The checksum keeps names of different models different.
  return absl::StrCat(plain, "-", ChecksumOf(name).substr(0, kDigits));
}

bool IsVersionLabel(absl::string_view name) {
  return IsPlainName(name) && std::any_of(name.begin(), name.end(), absl::ascii_isalpha);
}

bool IsFolderName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\0'; }) &&
         IsUtf8(name);
}

}  // namespace braid
