// What the system says of a file, as a status.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// "cannot <what> '<path>': <the system's words for `code`, an errno>". RESOURCE_EXHAUSTED where the
// disk, a quota or the limit on files' sizes is used up, DATA_LOSS where the disk cannot be read.
absl::Status FileError(int code, absl::string_view what, absl::string_view path);

// `status` with "'<path>': " before its message.
absl::Status InFile(absl::string_view path, const absl::Status& status);

}  // namespace braid
