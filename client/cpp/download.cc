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

// A hidden file of another name in the same folder.
std::string Beside(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  absl::BitGen random;
  return absl::StrCat(path.substr(0, name), ".", path.substr(name), ".",
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileReceiver>> FileReceiver::Create(const std::string& path) {
  std::string beside = Beside(path);
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Errno(path, "cannot be written");
  return std::unique_ptr<FileReceiver>(new FileReceiver(path, std::move(beside), fd));
}

FileReceiver::FileReceiver(std::string path, std::string beside, int fd)
    : path_(std::move(path)), beside_(std::move(beside)), fd_(fd) {}

FileReceiver::~FileReceiver() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(beside_.c_str());
}

absl::Status FileReceiver::Begin() {
  filled_ = total_ = 0;
  const bool emptied = ftruncate(fd_, 0) == 0 && lseek(fd_, 0, SEEK_SET) == 0;
  return emptied ? absl::OkStatus() : Errno(path_, "cannot be written");
}

absl::Status FileReceiver::Add(const v1::DownloadModelResponse& piece) {
  if (piece.offset() != filled_) {
    return absl::DataLossError(absl::StrCat("bytes from ", piece.offset(),
                                            " came where those from ", filled_, " were due"));
  }
  total_ = piece.total_bytes();
  absl::string_view left = piece.data();
  while (!left.empty()) {
    const ssize_t written = write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Errno(path_, "cannot be written");
    left.remove_prefix(static_cast<size_t>(written));
  }
  filled_ += static_cast<int64_t>(piece.data().size());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FileReceiver::Commit() {
  if (filled_ != total_ || total_ == 0) {
    return absl::DataLossError(
        absl::StrCat("the download ended after ", filled_, " of ", total_, " bytes"));
  }
  if (fsync(fd_) != 0 || std::rename(beside_.c_str(), path_.c_str()) != 0) {
    return Errno(path_, "cannot be written");
  }
  close(std::exchange(fd_, -1));
  return total_;
}

}  // namespace braid::client
