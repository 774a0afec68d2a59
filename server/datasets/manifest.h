// Names, sizes and checksums of the files of an uploaded dataset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/access/sha256.h"

namespace braid {

struct DatasetFile {
  // Relative to the dataset, with '/' between names. Empty: the dataset is this file.
  std::string path;
  int64_t bytes = 0;
  Sha256Digest sha256 = {};
};

struct DatasetManifest {
  std::string dataset;  // name below the dataset root
  std::vector<DatasetFile> files;

  // Returns true if the dataset is one file, false if it is a folder.
  bool is_file() const { return files.size() == 1 && files.front().path.empty(); }
  // Sum over the files.
  int64_t bytes() const;
};

// Largest number of files in a dataset.
inline constexpr int kMaxDatasetFiles = 100'000;

// INVALID_ARGUMENT naming the field "dataset" unless `name` has 1 to 128 letters, digits, '_', '-'
// and '.', and starts with a letter or digit.
absl::Status CheckDatasetName(absl::string_view name);

// INVALID_ARGUMENT naming the field, for example "files[3].path", unless the name is valid, there
// is at least one file, all paths stay in the dataset and differ, and no file is also a folder.
absl::Status CheckManifest(const DatasetManifest& manifest);

// Returns 64 hexadecimal digits. Uploads of the same files as the same dataset have equal IDs.
std::string UploadIdOf(const DatasetManifest& manifest);

// An upload as it is stored in its staging folder.
struct StoredUpload {
  DatasetManifest manifest;
  bool overwrite = false;  // replaces a dataset of this name
  std::string token = {};  // of the last call that started or continued it, which alone may write
};

std::string WriteStoredUpload(const StoredUpload& upload);
// DATA_LOSS if `text` is damaged.
absl::StatusOr<StoredUpload> ReadStoredUpload(absl::string_view text);

}  // namespace braid
