#include "server/data/output/growing_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/data/data_file.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<GrowingFile>> GrowingFile::Open(
    std::string path, int64_t preamble_bytes, const std::vector<StoredFile>& parts) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    return FileError(errno, "create", path);
  }
  std::unique_ptr<GrowingFile> growing(
      new GrowingFile(std::move(path), std::move(file), preamble_bytes));
  for (const StoredFile& part : parts) {
    BRAID_RETURN_IF_ERROR(growing->VerifyPart(part));
  }
  // Also extends a new file by its preamble.
  if (ftruncate(growing->file_.get(), growing->bytes_) != 0 ||
      lseek(growing->file_.get(), growing->bytes_, SEEK_SET) < 0) {
    return FileError(errno, "write", growing->path_);
  }
  return growing;
}

absl::Status GrowingFile::VerifyPart(const StoredFile& part) {
  Checksum checksum;
  int64_t rest = part.bytes;
  while (rest > 0) {
    BRAID_ASSIGN_OR_RETURN(const std::string block,
                           Read(bytes_, static_cast<size_t>(std::min(rest, kBlock))));
    checksum.Add(block);
    bytes_ += static_cast<int64_t>(block.size());
    rest -= static_cast<int64_t>(block.size());
  }
  if (checksum.Hex() != part.checksum) {
    return absl::DataLossError(
        absl::StrCat("'", path_, "': bytes ", bytes_ - part.bytes, " to ", bytes_,
                     " changed after they were written (expected checksum ", part.checksum, ")"));
  }
  return absl::OkStatus();
}

absl::Status GrowingFile::Write(absl::string_view bytes) {
  BRAID_RETURN_IF_ERROR(WriteAll(file_.get(), bytes, path_));
  checksum_.Add(bytes);
  part_bytes_ += static_cast<int64_t>(bytes.size());
  bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<StoredFile> GrowingFile::FinishPart() {
  if (fdatasync(file_.get()) != 0) {
    return FileError(errno, absl::StrCat("sync ", part_bytes_, " bytes of"), path_);
  }
  StoredFile part{part_bytes_, checksum_.Hex()};
  part_bytes_ = 0;
  checksum_ = Checksum();
  return part;
}

absl::Status GrowingFile::WritePreamble(absl::string_view preamble) {
  if (pwrite(file_.get(), preamble.data(), preamble.size(), 0) !=
          static_cast<ssize_t>(preamble.size()) ||
      fdatasync(file_.get()) != 0) {
    return FileError(errno, "write the header of", path_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> GrowingFile::Read(int64_t offset, size_t count) const {
  BRAID_ASSIGN_OR_RETURN(std::string bytes, ReadAt(file_.get(), offset, count, path_));
  if (bytes.size() < count) {
    return absl::DataLossError(absl::StrCat("'", path_, "' ends at byte ",
                                            offset + static_cast<int64_t>(bytes.size()),
                                            " (expected ", count - bytes.size(), " more bytes)"));
  }
  return bytes;
}

}  // namespace braid
