// Files of data sources, which other processes may replace, truncate or overwrite at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/storage/file_descriptor.h"
#include "server/storage/mapping/guarded_mapping.h"

namespace braid {

// Open file that notices when it changes. A file that is replaced by rename() stays readable and
// counts as unchanged. Thread-safe.
class DataFile {
 public:
  // NOT_FOUND if it does not exist, INVALID_ARGUMENT if it is not a regular file.
  static absl::StatusOr<std::shared_ptr<const DataFile>> Open(const std::string& path);
  // Takes over an open file. `path` appears in messages.
  static absl::StatusOr<std::shared_ptr<const DataFile>> Adopt(std::string path,
                                                               FileDescriptor file);

  const std::string& path() const { return path_; }
  // Size when the file was opened.
  int64_t bytes() const { return bytes_; }
  // Text that differs for another file and for changed contents: path, size, time and inode.
  std::string Identity() const;

  // ABORTED if size or modification time changed since the file was opened.
  absl::Status CheckUnchanged() const;
  // Reads up to `count` bytes from `offset`, fewer at the end of the file.
  absl::StatusOr<std::string> Read(int64_t offset, size_t count) const;
  // Opens the same file again, with a position of its own.
  absl::StatusOr<FileDescriptor> Reopen() const;
  int descriptor() const { return file_.get(); }

 private:
  DataFile(std::string path, FileDescriptor file, int64_t bytes, int64_t modified_ns,
           uint64_t inode)
      : path_(std::move(path)),
        file_(std::move(file)),
        bytes_(bytes),
        modified_ns_(modified_ns),
        inode_(inode) {}

  const std::string path_;
  const FileDescriptor file_;
  const int64_t bytes_;
  const int64_t modified_ns_;
  const uint64_t inode_;
};

// Read-only mapping of a range of a file. Thread-safe.
class MappedRange {
 public:
  // DATA_LOSS if the file is shorter.
  static absl::StatusOr<std::shared_ptr<const MappedRange>> Map(
      std::shared_ptr<const DataFile> file, size_t offset, size_t bytes);

  const char* data() const { return mapping_ == nullptr ? nullptr : mapping_->data(); }
  size_t bytes() const { return bytes_; }
  // Tells the system that accesses have no order, so that it reads no pages ahead.
  void ExpectRandomAccess() const;
  // ABORTED if the file changed, so that what was read from `data()` is not reliable.
  absl::Status Check() const;

 private:
  MappedRange(std::shared_ptr<const DataFile> file, std::unique_ptr<GuardedMapping> mapping,
              size_t bytes)
      : file_(std::move(file)), mapping_(std::move(mapping)), bytes_(bytes) {}

  const std::shared_ptr<const DataFile> file_;
  const std::unique_ptr<GuardedMapping> mapping_;  // null if `bytes_` is 0
  const size_t bytes_;
};

// Creates a file for writing and mapping that has no name and is removed when it is closed.
absl::StatusOr<FileDescriptor> CreateScratchFile(const std::string& directory);

// Reads `count` bytes, or fewer if the file ends before. `path` appears in messages.
absl::StatusOr<std::string> ReadAt(int descriptor, int64_t offset, size_t count,
                                   absl::string_view path);

// Writes all of `bytes` at the descriptor's position. `path` appears in messages.
absl::Status WriteAll(int descriptor, absl::string_view bytes, absl::string_view path);

}  // namespace braid
