#include "server/data/data_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

int64_t ModifiedNs(const struct stat& about) {
  return about.st_mtim.tv_sec * int64_t{1'000'000'000} + about.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DataFile>> DataFile::Open(const std::string& path) {
  // O_NONBLOCK keeps open() from waiting for the writer of a pipe. It does not affect files.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return FileError(errno, "read", path);
  }
  return Adopt(path, std::move(file));
}

absl::StatusOr<std::shared_ptr<const DataFile>> DataFile::Adopt(std::string path,
                                                                FileDescriptor file) {
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) {
    return FileError(errno, "read", path);
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not a regular file"));
  }
  return std::shared_ptr<const DataFile>(new DataFile(
      std::move(path), std::move(file), about.st_size, ModifiedNs(about), about.st_ino));
}

std::string DataFile::Identity() const {
  return absl::StrCat(path_, "\n", bytes_, " ", modified_ns_, " ", inode_, "\n");
}

absl::Status DataFile::CheckUnchanged() const {
  struct stat about = {};
  if (fstat(file_.get(), &about) != 0) {
    return FileError(errno, "read", path_);
  }
  if (about.st_size != bytes_ || ModifiedNs(about) != modified_ns_) {
    return absl::AbortedError(absl::StrCat(
        "'", path_, "' changed while it was in use (expected a file that is not written to)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DataFile::Read(int64_t offset, size_t count) const {
  return ReadAt(file_.get(), offset, count, path_);
}

absl::StatusOr<FileDescriptor> DataFile::Reopen() const {
  // Opening the path again might find another file.
  FileDescriptor again(
      open(absl::StrCat("/proc/self/fd/", file_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (again.get() < 0) {
    return FileError(errno, "read", path_);
  }
  return again;
}

absl::StatusOr<std::shared_ptr<const MappedRange>> MappedRange::Map(
    std::shared_ptr<const DataFile> file, size_t offset, size_t bytes) {
  const auto file_bytes = static_cast<size_t>(file->bytes());
  if (offset > file_bytes || bytes > file_bytes - offset) {
    return absl::DataLossError(absl::StrCat("'", file->path(), "' has ", file_bytes,
                                            " bytes (expected ", bytes, " bytes from byte ", offset,
                                            ")"));
  }
  std::unique_ptr<GuardedMapping> mapping;
  if (bytes > 0) {
    BRAID_ASSIGN_OR_RETURN(mapping, GuardedMapping::MapReadOnly(file->descriptor(), offset, bytes));
  }
  return std::shared_ptr<const MappedRange>(
      new MappedRange(std::move(file), std::move(mapping), bytes));
}

void MappedRange::ExpectRandomAccess() const {
  if (mapping_ != nullptr) {
    mapping_->ExpectRandomAccess();
  }
}

absl::Status MappedRange::Check() const {
  BRAID_RETURN_IF_ERROR(file_->CheckUnchanged());
  if (mapping_ != nullptr && mapping_->damaged()) {
    return absl::AbortedError(
        absl::StrCat("'", file_->path(), "' was truncated while it was in use"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> CreateScratchFile(const std::string& directory) {
  std::string path = absl::StrCat(directory, "/scratch-XXXXXX");
  FileDescriptor file(mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0 || unlink(path.c_str()) != 0) {
    return FileError(errno, "create a file in", directory);
  }
  return file;
}

absl::StatusOr<std::string> ReadAt(int descriptor, int64_t offset, size_t count,
                                   absl::string_view path) {
  std::string bytes(count, '\0');
  size_t read = 0;
  while (read < count) {
    const ssize_t got =
        pread(descriptor, bytes.data() + read, count - read, offset + static_cast<int64_t>(read));
    if (got == 0) {
      break;
    }
    if (got > 0) {
      read += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      return FileError(errno, "read", path);
    }
  }
  bytes.resize(read);
  return bytes;
}

absl::Status WriteAll(int descriptor, absl::string_view bytes, absl::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return FileError(errno, absl::StrCat("write ", bytes.size(), " bytes to"), path);
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
