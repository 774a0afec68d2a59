#include "server/remote/object_path.h"

#include <algorithm>
#include <climits>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr absl::string_view kScheme = "s3://";

}  // namespace

bool IsObjectPath(absl::string_view text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<std::string> ParseObjectPath(absl::string_view text) {
  absl::string_view path = text;
  bool valid = absl::ConsumePrefix(&path, kScheme) && !absl::StrContains(path, '\0');
  absl::ConsumeSuffix(&path, "/");
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    valid = valid && !part.empty() && part != "." && part != ".." && part.size() <= NAME_MAX;
  }
  // The copy of an object is below a directory whose path needs room, too.
  if (!valid || path.size() >= PATH_MAX / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Excerpt(text),
                     "' (expected s3://bucket/key, where no part of the key is "
                     "empty, '.', '..' or longer than 255 bytes)"));
  }
  return std::string(path);
}

bool IsBelowPrefix(absl::string_view path, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [path](const std::string& prefix) {
    return absl::StartsWith(path, prefix) &&
           (path.size() == prefix.size() || path[prefix.size()] == '/');
  });
}

}  // namespace braid
