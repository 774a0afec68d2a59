// Files of a dataset that a client is uploading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/access/sha256.h"
#include "server/datasets/dataset_space.h"
#include "server/datasets/manifest.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Staging folder of an upload, which survives the process:
//
//   upload.json   StoredUpload
//   verified      files whose checksum was verified since the machine started
//   data          the dataset: a file or a folder
//
// Files are written from start to end, so the size of a file is the number of received bytes. After
// a crash of the machine, which may lose the page cache, files are verified again.
//
// Thread-safe. Methods block on the disk.
class DatasetUpload {
 public:
  // Creates the folder, or replaces the upload.json of an upload of the same files.
  static absl::Status Create(const std::string& directory, const StoredUpload& upload);
  // Returns what Create() stored. NOT_FOUND if there is no such folder, DATA_LOSS if upload.json is
  // damaged.
  static absl::StatusOr<StoredUpload> Read(const std::string& directory);
  // Opens a folder of Create(). Verifies the complete files that `verified` does not list, and
  // removes damaged ones. No other object may write to the folder. `space` outlives the upload.
  static absl::StatusOr<std::shared_ptr<DatasetUpload>> Open(const std::string& directory,
                                                             StoredUpload upload,
                                                             DatasetSpace* space);

  const std::string& directory() const { return directory_; }
  const DatasetManifest& manifest() const { return upload_.manifest; }
  bool overwrite() const { return upload_.overwrite; }
  // Returns the path of the received file or folder.
  std::string data() const;

  // Returns the number of bytes of each file of the manifest that are there.
  std::vector<int64_t> Received() const ABSL_LOCKS_EXCLUDED(mu_);
  // Appends to file number `file` of the manifest and verifies it at its end. A file must be
  // complete before the next one starts. ABORTED after Supersede(); INVALID_ARGUMENT if `offset` is
  // not the number of bytes that are there, or the file would become larger than its manifest says;
  // RESOURCE_EXHAUSTED if the quota or the disk is exhausted; DATA_LOSS if the checksum differs,
  // after which the file starts at 0 again.
  absl::Status Append(int64_t file, int64_t offset, absl::string_view data)
      ABSL_LOCKS_EXCLUDED(mu_);
  // INVALID_ARGUMENT naming the first file that is not complete.
  absl::Status CheckComplete() const ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the files durable. ABORTED after Supersede(). Append() fails afterwards.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes later calls fail, because another call continues the upload. Waits for running ones.
  void Supersede() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // File that is being written.
  struct Part {
    size_t file = 0;
    FileDescriptor descriptor;
  };

  DatasetUpload(std::string directory, StoredUpload upload, DatasetSpace* space)
      : directory_(std::move(directory)),
        upload_(std::move(upload)),
        space_(space),
        received_(upload_.manifest.files.size(), 0) {}

  std::string PathOf(size_t file) const;
  // Reads the sizes of the files and verifies complete ones.
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mu_);
  // ABORTED if another call continues or completes the upload.
  absl::Status CheckActive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckPosition(int64_t file, int64_t offset, size_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens a file for Append(). Hashes the bytes that are there.
  absl::Status OpenPart(size_t file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes and verifies the file that is being written.
  absl::Status ClosePart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records that a file was verified.
  absl::Status MarkVerified(size_t file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RemoveFile(size_t file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string directory_;
  const StoredUpload upload_;
  DatasetSpace* const space_;

  mutable absl::Mutex mu_;
  bool superseded_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<int64_t> received_ ABSL_GUARDED_BY(mu_);  // by file
  std::optional<Part> part_ ABSL_GUARDED_BY(mu_);
  Sha256Hasher hasher_ ABSL_GUARDED_BY(mu_);  // of `part_`
  FileDescriptor verified_ ABSL_GUARDED_BY(mu_){-1};
};

// ABORTED: another call `action` ("continues", "completes") the upload.
absl::Status UploadAborted(const std::string& dataset, absl::string_view action);

// Writes the dirty pages of the file system of `path` to the disk.
absl::Status SyncFileSystem(const std::string& path);

}  // namespace braid
