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

// Copies the file `from` to `to` and returns once the copy is durable. DATA_LOSS if `from` is
// missing or has changed; RESOURCE_EXHAUSTED if the disk is full.
absl::Status CopyStoredFile(const std::string& from, const StoredFile& stored,
                            const std::string& to);

// DATA_LOSS if there is no file of this size.
absl::Status CheckStoredSize(const std::string& path, const StoredFile& expected);

// Reads the file. DATA_LOSS if it is missing or has changed.
absl::Status CheckStoredContent(const std::string& path, const StoredFile& expected);

}  // namespace braid
