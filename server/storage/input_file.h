// A file that is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Thread-safe.
class InputFile {
 public:
  // NOT_FOUND if there is none, DATA_LOSS if it is something else than a file.
  static absl::StatusOr<InputFile> Open(std::string path);

  const std::string& path() const { return path_; }
  // When it was opened.
  int64_t bytes() const { return bytes_; }

  // The `count` bytes from `offset`. DATA_LOSS if there are not so many, any more.
  absl::Status Read(int64_t offset, void* to, size_t count) const;

 private:
  InputFile(std::string path, FileDescriptor file, int64_t bytes);

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_;
};

// All of a file. DATA_LOSS if it has more than `limit` bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit);

}  // namespace braid
