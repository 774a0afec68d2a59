// File whose end is replaced while it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Thread-compatible. Bytes survive the end of the process, but not a loss of power. Errors name the
// path: RESOURCE_EXHAUSTED if the disk is full.
class TailFile {
 public:
  // Bytes that users of this class keep at most when they could not be written.
  static constexpr size_t kMaxUnwritten = size_t{1} << 20;

  // Opens or creates the file.
  static absl::StatusOr<TailFile> Open(const std::string& path);

  // Replaces the bytes from `offset` on, which is at most the size of the file. On an error, the
  // file ends at `offset`.
  absl::Status Replace(int64_t offset, absl::string_view bytes);

 private:
  TailFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;
};

}  // namespace braid
