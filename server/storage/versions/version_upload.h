// Files of a version that a client is uploading.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/new_file.h"
#include "server/storage/file_sink.h"

namespace braid {

// A temporary directory, which the destructor removes. Thread-compatible.
class VersionUpload {
 public:
  // Creates a directory in `parent`, which is created if it is missing.
  static absl::StatusOr<std::unique_ptr<VersionUpload>> Create(const std::string& parent);
  ~VersionUpload();
  VersionUpload(const VersionUpload&) = delete;
  VersionUpload& operator=(const VersionUpload&) = delete;

  // Appends to a file. INVALID_ARGUMENT for a name that is not that of a model's file.
  absl::Status Append(const std::string& file, absl::string_view data);
  // Returns the files for VersionStore::Write(), which reads them before the upload is destroyed.
  // INVALID_ARGUMENT unless they are those of one model. Call once.
  absl::StatusOr<std::vector<NewFile>> Finish();

 private:
  explicit VersionUpload(std::string directory) : directory_(std::move(directory)) {}

  std::string PathOf(const std::string& file) const;

  const std::string directory_;
  std::map<std::string, FileSink> files_;
};

}  // namespace braid
