// File that is written in parts and cut to the complete ones after a crash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/byte_sink.h"
#include "server/storage/checksum.h"
#include "server/storage/file_descriptor.h"
#include "server/storage/manifest.h"

namespace braid {

// Errors name the path; RESOURCE_EXHAUSTED if the disk is full. Thread-compatible.
class GrowingFile final : public ByteSink {
 public:
  // Opens or creates a file whose parts begin after `preamble_bytes` bytes. Verifies the checksums
  // of the complete parts and cuts off what follows them. DATA_LOSS if a part is damaged.
  static absl::StatusOr<std::unique_ptr<GrowingFile>> Open(std::string path, int64_t preamble_bytes,
                                                           const std::vector<StoredFile>& parts);

  // Appends to the current part.
  absl::Status Write(absl::string_view bytes) override;
  // Makes the current part durable and begins the next one.
  absl::StatusOr<StoredFile> FinishPart();
  // Replaces the preamble. Durable.
  absl::Status WritePreamble(absl::string_view preamble);
  // Reads a range of what was written.
  absl::StatusOr<std::string> Read(int64_t offset, size_t count) const;

  // Size of the file.
  int64_t bytes() const { return bytes_; }

 private:
  GrowingFile(std::string path, FileDescriptor file, int64_t preamble_bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(preamble_bytes) {}

  absl::Status VerifyPart(const StoredFile& part);

  const std::string path_;
  const FileDescriptor file_;
  int64_t bytes_;
  int64_t part_bytes_ = 0;
  Checksum checksum_;  // of the current part
};

}  // namespace braid
