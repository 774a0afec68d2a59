// A file that is written from its beginning to its end.
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

// Thread-compatible. Every failure names the path; RESOURCE_EXHAUSTED where the disk is full.
class FileSink final : public ByteSink {
 public:
  // Makes the file, or empties the one that is there.
  static absl::StatusOr<FileSink> Create(std::string path);

  // Buffers what is small. After a failure: that failure again.
  absl::Status Write(absl::string_view bytes) override;
  // Returns when all is on the disk. The file is there before, but not to be relied on.
  absl::Status Finish();

  // Of all that was written.
  int64_t bytes() const { return bytes_; }
  std::string checksum() const { return checksum_.Hex(); }

 private:
  FileSink(std::string path, FileDescriptor file);

  absl::Status Flush();
  absl::Status WriteOut(absl::string_view bytes);

  std::string path_;
  FileDescriptor file_;
  // Not handed to the system yet.
  std::string buffer_;
  int64_t bytes_ = 0;
  Checksum checksum_;
  // The first one.
  absl::Status failure_;
};

}  // namespace braid
