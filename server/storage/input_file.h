// File for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/byte_sink.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Thread-safe.
class InputFile {
 public:
  // NOT_FOUND if it does not exist, DATA_LOSS if it is not a regular file.
  static absl::StatusOr<InputFile> Open(std::string path);

  const std::string& path() const { return path_; }
  // Size when the file was opened.
  int64_t bytes() const { return bytes_; }

  // Reads `count` bytes at `offset` into `to`. DATA_LOSS if the file is shorter.
  absl::Status Read(int64_t offset, void* to, size_t count) const;
  // Writes all bytes to `sink`. Errors as Read(), and those of the sink.
  absl::Status WriteTo(ByteSink* sink) const;

 private:
  InputFile(std::string path, FileDescriptor file, int64_t bytes);

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_;
};

// Reads a whole file. DATA_LOSS if it has more than `limit` bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit);

}  // namespace braid
