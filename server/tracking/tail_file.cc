#include "server/tracking/tail_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "server/storage/file_error.h"

namespace braid {

absl::StatusOr<TailFile> TailFile::Open(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) {
    return FileError(errno, "open", path);
  }
  return TailFile(path, std::move(file));
}

absl::Status TailFile::Replace(int64_t offset, absl::string_view bytes) {
  int64_t end = offset;
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t written = pwrite(file_.get(), bytes.data(), bytes.size(), end);
    if (written > 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
      end += written;
    } else if (errno != EINTR) {
      error = errno;
      end = offset;
    }
  }
  // Last, so that a crash in between leaves complete lines at `offset`.
  if (ftruncate(file_.get(), end) != 0 && error == 0) {
    error = errno;
  }
  return error == 0 ? absl::OkStatus() : FileError(error, "write", path_);
}

}  // namespace braid
