#include "client/cpp/download.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace braid::client {
namespace {

absl::Status Errno(const std::string& path, const char* what) {
  const absl::Status status = absl::ErrnoToStatus(errno, what);
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Returns the path of a hidden file with a random suffix in the same folder.
std::string TemporaryPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  absl::BitGen random;
  return absl::StrCat(path.substr(0, name), ".", path.substr(name), ".",
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileReceiver>> FileReceiver::Create(const std::string& path) {
  std::string temporary_path = TemporaryPath(path);
  const int fd = open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Errno(path, "cannot write");
  return std::unique_ptr<FileReceiver>(new FileReceiver(path, std::move(temporary_path), fd));
}

FileReceiver::FileReceiver(std::string path, std::string temporary_path, int fd)
    : path_(std::move(path)), temporary_path_(std::move(temporary_path)), fd_(fd) {}

FileReceiver::~FileReceiver() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_path_.c_str());
}

absl::Status FileReceiver::Restart() {
  received_ = total_ = 0;
  const bool truncated = ftruncate(fd_, 0) == 0 && lseek(fd_, 0, SEEK_SET) == 0;
  return truncated ? absl::OkStatus() : Errno(path_, "cannot write");
}

absl::Status FileReceiver::Add(const v1::DownloadModelResponse& piece) {
  if (piece.offset() != received_) {
    return absl::DataLossError(
        absl::StrCat("download: received offset ", piece.offset(), " (expected ", received_, ")"));
  }
  total_ = piece.total_bytes();
  absl::string_view left = piece.data();
  while (!left.empty()) {
    const ssize_t written = write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Errno(path_, "cannot write");
    left.remove_prefix(static_cast<size_t>(written));
  }
  received_ += static_cast<int64_t>(piece.data().size());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FileReceiver::Commit() {
  if (received_ != total_ || total_ == 0) {
    return absl::DataLossError(
        absl::StrCat("download: ended after ", received_, " of ", total_, " bytes"));
  }
  if (fsync(fd_) != 0 || std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return Errno(path_, "cannot write");
  }
  close(std::exchange(fd_, -1));
  return total_;
}

}  // namespace braid::client
