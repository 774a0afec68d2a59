// Files whose size and checksum are recorded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/new_file.h"

namespace braid {

struct StoredFile {
  int64_t bytes = 0;
  std::string checksum;  // Checksum::Hex()
};

// Writes or replaces the file at `path` and returns once its contents are durable.
// RESOURCE_EXHAUSTED if the disk is full; the error of `file.write`.
absl::StatusOr<StoredFile> StoreFile(const std::string& path, const NewFile& file);

// Returns what StoreFile() would return, without writing. The error of `file.write`.
absl::StatusOr<StoredFile> MeasureFile(const NewFile& file);

// Writes or replaces the file at `to` and returns once its contents are durable. NOT_FOUND without
// `from`; RESOURCE_EXHAUSTED if the disk is full.
absl::Status CopyFile(const std::string& from, const std::string& to);

// DATA_LOSS if there is no file of this size.
absl::Status CheckStoredSize(const std::string& path, const StoredFile& expected);

// Reads the file. DATA_LOSS if it is missing or has changed.
absl::Status CheckStoredContent(const std::string& path, const StoredFile& expected);

}  // namespace braid
