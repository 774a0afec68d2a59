#include "server/storage/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(std::string path) {
  // O_NONBLOCK keeps open() from waiting for the writer of a pipe. It does not affect files.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about = {};
  if (file.get() < 0 || fstat(file.get(), &about) != 0) {
    return FileError(errno, "read", path);
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::DataLossError(absl::StrCat("'", path, "': not a regular file"));
  }
  return InputFile(std::move(path), std::move(file), about.st_size);
}

InputFile::InputFile(std::string path, FileDescriptor file, int64_t bytes)
    : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

absl::Status InputFile::Read(int64_t offset, void* to, size_t count) const {
  char* at = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(file_.get(), at, count, offset);
    if (got < 0 && errno != EINTR) {
      return FileError(errno, absl::StrCat("read ", count, " bytes at byte ", offset, " of"),
                       path_);
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("'", path_, "': ends at byte ", offset, " (expected ",
                                              count, " more bytes)"));
    }
    if (got > 0) {
      at += got;
      offset += got;
      count -= static_cast<size_t>(got);
    }
  }
  return absl::OkStatus();
}

absl::Status InputFile::WriteTo(ByteSink* sink) const {
  std::string piece;
  for (int64_t offset = 0; offset < bytes_; offset += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, bytes_ - offset)));
    BRAID_RETURN_IF_ERROR(Read(offset, piece.data(), piece.size()));
    BRAID_RETURN_IF_ERROR(sink->Write(piece));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.bytes() > limit) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': ", file.bytes(), " bytes (expected at most ", limit, ")"));
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  BRAID_RETURN_IF_ERROR(file.Read(0, text.data(), text.size()));
  return text;
}

}  // namespace braid
