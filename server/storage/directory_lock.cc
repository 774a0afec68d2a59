#include "server/storage/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/storage/file_error.h"

namespace braid {

absl::StatusOr<FileDescriptor> LockDirectory(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/lock");
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) {
    return FileError(errno, "open", path);
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", directory, "' is in use by another server, which holds ", path));
  }
  return file;
}

}  // namespace braid
