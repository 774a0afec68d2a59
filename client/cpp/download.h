// Receives a file in pieces and replaces the destination atomically. Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"

namespace braid::client {

// Writes to a temporary file in the same folder and renames it to `path` on Commit, so `path` never
// holds a partial file. Thread-compatible.
class FileReceiver {
 public:
  // Creates the temporary file. Returns the status for errno if that fails.
  static absl::StatusOr<std::unique_ptr<FileReceiver>> Create(const std::string& path);
  // Removes the temporary file if it was not committed.
  ~FileReceiver();

  FileReceiver(const FileReceiver&) = delete;
  FileReceiver& operator=(const FileReceiver&) = delete;

  // Discards the bytes received so far.
  absl::Status Restart();
  // Writes the next piece. DATA_LOSS if its offset is not the number of bytes received.
  absl::Status Add(const v1::DownloadModelResponse& piece);
  // Flushes the file and renames it to `path`, replacing an existing file. Returns its size in
  // bytes. DATA_LOSS if pieces are missing.
  absl::StatusOr<int64_t> Commit();

 private:
  FileReceiver(std::string path, std::string temporary_path, int fd);

  const std::string path_;
  const std::string temporary_path_;
  // -1 once committed.
  int fd_;
  int64_t received_ = 0;
  int64_t total_ = 0;
};

}  // namespace braid::client
