// Receives a file in pieces, and puts it in its place whole or not at all. Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"

namespace braid::client {

// Writes beside `path` and gives the file that name in the end, so that `path` is never half a
// file. Thread-compatible.
class FileReceiver {
 public:
  // The code for errno if no file can be made there.
  static absl::StatusOr<std::unique_ptr<FileReceiver>> Create(const std::string& path);
  // Removes what was not committed.
  ~FileReceiver();

  FileReceiver(const FileReceiver&) = delete;
  FileReceiver& operator=(const FileReceiver&) = delete;

  // Forgets what has come.
  absl::Status Begin();
  // Takes the next piece. DATA_LOSS if it does not go on where the last one ended.
  absl::Status Add(const v1::DownloadModelResponse& piece);
  // Puts the file in its place, in place of what is there; returns its size. DATA_LOSS if pieces
  // are missing.
  absl::StatusOr<int64_t> Commit();

 private:
  FileReceiver(std::string path, std::string beside, int fd);

  const std::string path_;
  const std::string beside_;
  // -1 once committed.
  int fd_;
  int64_t filled_ = 0;
  int64_t total_ = 0;
};

}  // namespace braid::client
