// File that is written sequentially.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/byte_sink.h"
#include "server/storage/checksum.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Errors name the path; RESOURCE_EXHAUSTED if the disk is full. Thread-compatible.
class FileSink final : public ByteSink {
 public:
  // Creates or truncates the file.
  static absl::StatusOr<FileSink> Create(std::string path);

  // Buffers small writes. After an error, returns that error again.
  absl::Status Write(absl::string_view bytes) override;
  // Flushes and syncs the file. Its contents are durable only afterwards.
  absl::Status Finish();

  // Size and checksum of all written bytes.
  int64_t bytes() const { return bytes_; }
  std::string checksum() const { return checksum_.Hex(); }

 private:
  FileSink(std::string path, FileDescriptor file);

  absl::Status Flush();
  absl::Status WriteOut(absl::string_view bytes);

  std::string path_;
  FileDescriptor file_;
  // Bytes that are not written yet.
  std::string buffer_;
  int64_t bytes_ = 0;      // of all calls of Write()
  int64_t written_ = 0;    // without buffer_
  int64_t writeback_ = 0;  // of which the kernel has started writeback
  Checksum checksum_;
  absl::Status failure_;  // first error
};

}  // namespace braid
