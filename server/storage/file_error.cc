#include "server/storage/file_error.h"

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace braid {

absl::Status FileError(int code, absl::string_view action, absl::string_view path) {
  absl::Status status = absl::ErrnoToStatus(code, absl::StrCat("cannot ", action, " '", path, "'"));
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(status.message());
    case EIO:
      return absl::DataLossError(status.message());
    default:
      return status;
  }
}

absl::Status InFile(absl::string_view path, const absl::Status& status) {
  return {status.code(), absl::StrCat("'", path, "': ", status.message())};
}

}  // namespace braid
