// Names of objects in S3: "s3://bucket/key".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Returns true for a text that starts with "s3://".
bool IsObjectPath(absl::string_view text);

// Returns "bucket/key" for "s3://bucket/key", and "bucket" for "s3://bucket". Removes a '/' at the
// end. INVALID_ARGUMENT if the bucket or a part of the key is empty, "." or "..", or if a part is
// longer than a file name may be: keys become paths of local files.
absl::StatusOr<std::string> ParseObjectPath(absl::string_view text);

// Returns true if `path` is one of the prefixes or below one: "bucket/data" has "bucket/data/a",
// but not "bucket/database". All are results of ParseObjectPath().
bool IsBelowPrefix(absl::string_view path, const std::vector<std::string>& prefixes);

}  // namespace braid
