#include "server/storage/file_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;
// Writeback starts after so many bytes, so that Finish() has less to wait for.
constexpr int64_t kWriteback = int64_t{8} << 20;

}  // namespace

absl::StatusOr<FileSink> FileSink::Create(std::string path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    return FileError(errno, "create", path);
  }
  return FileSink(std::move(path), std::move(file));
}

FileSink::FileSink(std::string path, FileDescriptor file)
    : path_(std::move(path)), file_(std::move(file)) {}

absl::Status FileSink::Write(absl::string_view bytes) {
  BRAID_RETURN_IF_ERROR(failure_);
  if (buffer_.size() + bytes.size() > kBuffer) {
    BRAID_RETURN_IF_ERROR(Flush());
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  // In pieces that are still in the processor's cache when they are written.
  for (; bytes.size() >= kBuffer; bytes.remove_prefix(kBuffer)) {
    checksum_.Add(bytes.substr(0, kBuffer));
    BRAID_RETURN_IF_ERROR(WriteOut(bytes.substr(0, kBuffer)));
  }
  checksum_.Add(bytes);
  buffer_.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status FileSink::Finish() {
  BRAID_RETURN_IF_ERROR(failure_);
  BRAID_RETURN_IF_ERROR(Flush());
  if (fsync(file_.get()) != 0 || !file_.Close()) {
    failure_ = FileError(errno, absl::StrCat("sync ", bytes_, " bytes of"), path_);
  }
  return failure_;
}

absl::Status FileSink::Flush() {
  BRAID_RETURN_IF_ERROR(WriteOut(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status FileSink::WriteOut(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
      written_ += written;
    } else if (errno != EINTR) {
      failure_ = FileError(errno, absl::StrCat("write ", bytes.size(), " bytes to"), path_);
      return failure_;
    }
  }
  if (written_ - writeback_ >= kWriteback) {
    // A hint: Finish() reports errors.
    sync_file_range(file_.get(), writeback_, written_ - writeback_, SYNC_FILE_RANGE_WRITE);
    writeback_ = written_;
  }
  return absl::OkStatus();
}

}  // namespace braid
