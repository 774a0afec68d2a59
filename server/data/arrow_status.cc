#include "server/data/arrow_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "arrow/util/io_util.h"
#include "server/base/text.h"
#include "server/storage/file_error.h"

namespace braid {

absl::Status FromArrow(const arrow::Status& status, absl::string_view action,
                       absl::string_view path) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  if (const int code = arrow::internal::ErrnoFromStatus(status); code != 0) {
    return FileError(code, action, path);
  }
  const std::string text =
      absl::StrCat("cannot ", action, " '", path, "': ", Excerpt(status.message(), 512));
  if (status.IsOutOfMemory() || status.IsCapacityError()) {
    return absl::ResourceExhaustedError(text);
  }
  if (status.IsNotImplemented()) {
    return absl::UnimplementedError(text);
  }
  return absl::DataLossError(text);
}

}  // namespace braid
