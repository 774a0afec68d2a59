// Errors of files as a Status.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

// Returns the error "cannot <action> '<path>': <text of `code`>". `code` is an errno. The status is
// RESOURCE_EXHAUSTED if the disk, a quota or the file size limit is exhausted, DATA_LOSS for an I/O
// error, else that of absl::ErrnoToStatus().
absl::Status FileError(int code, absl::string_view action, absl::string_view path);

// Returns `status` with "'<path>': " before its message.
absl::Status InFile(absl::string_view path, const absl::Status& status);

}  // namespace braid
