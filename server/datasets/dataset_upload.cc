#include "server/datasets/dataset_upload.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

constexpr char kManifest[] = "upload.json";
constexpr char kVerified[] = "verified";
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
constexpr int64_t kReadBytes = int64_t{1} << 20;

// Returns a line that identifies the start of the machine, since which the page cache is intact.
// Empty if unknown.
std::string BootId() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  return std::getline(file, id) ? absl::StrCat(id, "\n") : "";
}

absl::Status WriteAll(int descriptor, absl::string_view bytes, const std::string& path) {
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

// Returns the size of a file; 0 if it does not exist.
absl::StatusOr<int64_t> SizeOf(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? absl::StatusOr<int64_t>(0) : FileError(errno, "read", path);
  }
  return status.st_size;
}

// Adds the first `bytes` bytes of a file to a digest.
absl::Status HashFile(const std::string& path, int64_t bytes, Sha256Hasher* hasher) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::string piece;
  for (int64_t offset = 0; offset < bytes; offset += kReadBytes) {
    piece.resize(static_cast<size_t>(std::min(kReadBytes, bytes - offset)));
    BRAID_RETURN_IF_ERROR(file.Read(offset, piece.data(), piece.size()));
    hasher->Add(piece);
  }
  return absl::OkStatus();
}

// Parses the lines of `verified` after the boot ID. Ignores a last line that a crash cut short.
std::set<size_t> ReadVerified(absl::string_view text, absl::string_view boot_id) {
  std::set<size_t> files;
  if (boot_id.empty() || !absl::ConsumePrefix(&text, boot_id)) {
    return files;
  }
  text = text.substr(0, text.rfind('\n') + 1);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    size_t file = 0;
    if (absl::SimpleAtoi(line, &file)) {
      files.insert(file);
    }
  }
  return files;
}

std::string NameOf(const DatasetManifest& manifest, size_t file) {
  const std::string& path = manifest.files[file].path;
  return absl::StrCat(
      "'", absl::Utf8SafeCHexEscape(Excerpt(path.empty() ? manifest.dataset : path)), "'");
}

}  // namespace

absl::Status UploadAborted(const std::string& dataset, absl::string_view action) {
  return absl::AbortedError(absl::StrCat("upload: another call ", action, " the upload of '",
                                         dataset, "' (expected one call at a time)"));
}

absl::Status SyncFileSystem(const std::string& path) {
  const FileDescriptor opened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.get() < 0 || syncfs(opened.get()) != 0) {
    return FileError(errno, "sync the file system of", path);
  }
  return absl::OkStatus();
}

absl::Status DatasetUpload::Create(const std::string& directory, const StoredUpload& upload) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  return WriteFileDurably(absl::StrCat(directory, "/", kManifest), WriteStoredUpload(upload));
}

absl::StatusOr<StoredUpload> DatasetUpload::Read(const std::string& directory) {
  BRAID_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile(absl::StrCat(directory, "/", kManifest), kMaxManifestBytes));
  return ReadStoredUpload(text);
}

absl::StatusOr<std::shared_ptr<DatasetUpload>> DatasetUpload::Open(const std::string& directory,
                                                                   StoredUpload upload,
                                                                   DatasetSpace* space) {
  std::shared_ptr<DatasetUpload> opened(new DatasetUpload(directory, std::move(upload), space));
  BRAID_RETURN_IF_ERROR(opened->Load());
  return opened;
}

std::string DatasetUpload::data() const { return absl::StrCat(directory_, "/data"); }

std::string DatasetUpload::PathOf(size_t file) const {
  return manifest().is_file() ? data() : absl::StrCat(data(), "/", manifest().files[file].path);
}

absl::Status DatasetUpload::Load() {
  const absl::MutexLock lock(&mu_);
  const std::string boot_id = BootId();
  const std::string path = absl::StrCat(directory_, "/", kVerified);
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxManifestBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) {
    return text.status();
  }
  const std::set<size_t> verified = ReadVerified(text.ok() ? *text : "", boot_id);
  verified_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (verified_.get() < 0) {
    return FileError(errno, "create", path);
  }
  BRAID_RETURN_IF_ERROR(WriteAll(verified_.get(), boot_id, path));
  for (size_t i = 0; i < received_.size(); ++i) {
    const DatasetFile& file = manifest().files[i];
    BRAID_ASSIGN_OR_RETURN(received_[i], SizeOf(PathOf(i)));
    bool damaged = received_[i] > file.bytes;
    if (received_[i] == file.bytes && file.bytes > 0 && !verified.contains(i)) {
      hasher_.Begin();
      BRAID_RETURN_IF_ERROR(HashFile(PathOf(i), file.bytes, &hasher_));
      damaged = hasher_.End() != file.sha256;
    }
    if (damaged) {
      BRAID_RETURN_IF_ERROR(RemoveFile(i));
    } else if (received_[i] == file.bytes) {
      BRAID_RETURN_IF_ERROR(MarkVerified(i));
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> DatasetUpload::Received() const {
  const absl::MutexLock lock(&mu_);
  return received_;
}

absl::Status DatasetUpload::Append(int64_t file, int64_t offset, absl::string_view data) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(CheckActive());
  BRAID_RETURN_IF_ERROR(CheckPosition(file, offset, data.size()));
  const auto index = static_cast<size_t>(file);
  if (!part_) {
    BRAID_RETURN_IF_ERROR(OpenPart(index));
  }
  const auto bytes = static_cast<int64_t>(data.size());
  BRAID_RETURN_IF_ERROR(space_->Take(bytes));
  BRAID_RETURN_IF_ERROR(WriteAll(part_->descriptor.get(), data, PathOf(index)));
  hasher_.Add(data);
  received_[index] += bytes;
  return received_[index] == manifest().files[index].bytes ? ClosePart() : absl::OkStatus();
}

absl::Status DatasetUpload::CheckActive() const {
  if (superseded_ || finished_) {
    return UploadAborted(manifest().dataset, finished_ ? "completes" : "continues");
  }
  return absl::OkStatus();
}

absl::Status DatasetUpload::CheckPosition(int64_t file, int64_t offset, size_t bytes) const {
  if (file < 0 || file >= static_cast<int64_t>(received_.size())) {
    return InvalidField("file", absl::StrCat(file, " (expected 0 to ", received_.size() - 1, ")"));
  }
  const auto index = static_cast<size_t>(file);
  if (part_ && part_->file != index) {
    return InvalidField("file", absl::StrCat(file, " before file ", part_->file, ", ",
                                             NameOf(manifest(), part_->file), ", is complete"));
  }
  if (offset != received_[index]) {
    return InvalidField("offset", absl::StrCat(offset, " in ", NameOf(manifest(), index),
                                               " (expected ", received_[index], ")"));
  }
  const int64_t left = manifest().files[index].bytes - received_[index];
  if (bytes > static_cast<size_t>(left)) {
    return InvalidField(
        "data", absl::StrCat(bytes, " bytes at offset ", offset, " of ", NameOf(manifest(), index),
                             " (expected at most ", left, ")"));
  }
  return absl::OkStatus();
}

absl::Status DatasetUpload::OpenPart(size_t file) {
  const std::string path = PathOf(file);
  BRAID_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path()));
  FileDescriptor descriptor(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) {
    return FileError(errno, "create", path);
  }
  hasher_.Begin();
  BRAID_RETURN_IF_ERROR(HashFile(path, received_[file], &hasher_));
  part_.emplace(file, std::move(descriptor));
  return absl::OkStatus();
}

absl::Status DatasetUpload::ClosePart() {
  const size_t file = part_->file;
  const bool closed = part_->descriptor.Close();
  part_.reset();
  if (!closed) {
    return FileError(errno, "close", PathOf(file));
  }
  const Sha256Digest sha256 = hasher_.End();
  const DatasetFile& expected = manifest().files[file];
  if (sha256 == expected.sha256) {
    return MarkVerified(file);
  }
  BRAID_RETURN_IF_ERROR(RemoveFile(file));
  return absl::DataLossError(absl::StrCat("files[", file, "].sha256: ", NameOf(manifest(), file),
                                          " was received with checksum ", Sha256Hex(sha256),
                                          " (expected ", Sha256Hex(expected.sha256),
                                          "): it was damaged, or changed during the upload"));
}

absl::Status DatasetUpload::MarkVerified(size_t file) {
  return WriteAll(verified_.get(), absl::StrCat(file, "\n"),
                  absl::StrCat(directory_, "/", kVerified));
}

absl::Status DatasetUpload::RemoveFile(size_t file) {
  if (unlink(PathOf(file).c_str()) != 0) {
    return FileError(errno, "remove", PathOf(file));
  }
  space_->Release(received_[file]);
  received_[file] = 0;
  return absl::OkStatus();
}

absl::Status DatasetUpload::CheckComplete() const {
  const absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < received_.size(); ++i) {
    if (const int64_t bytes = manifest().files[i].bytes; received_[i] != bytes) {
      return InvalidField("data", absl::StrCat("the upload ended with ", received_[i], " of ",
                                               bytes, " bytes of ", NameOf(manifest(), i),
                                               " (expected all; continue it with "
                                               "StartDatasetUpload)"));
    }
  }
  return absl::OkStatus();
}

absl::Status DatasetUpload::Finish() {
  BRAID_RETURN_IF_ERROR(CheckComplete());
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(CheckActive());
  for (size_t i = 0; i < received_.size(); ++i) {
    if (manifest().files[i].bytes == 0) {
      BRAID_RETURN_IF_ERROR(OpenPart(i));
      part_.reset();
    }
  }
  finished_ = true;
  return SyncFileSystem(directory_);
}

void DatasetUpload::Supersede() {
  const absl::MutexLock lock(&mu_);
  superseded_ = true;
}

}  // namespace braid
