// Files that several directories contain, stored once.
//
//   <directory>/<checksum>-<bytes>
//
// Other directories have hard links to them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/new_file.h"
#include "server/storage/stored_file.h"

namespace braid {

// Its contents do not change.
class SharedFile {
 public:
  SharedFile(std::string path, StoredFile stored)
      : path_(std::move(path)), stored_(std::move(stored)) {}

  const StoredFile& stored() const { return stored_; }
  // Makes `place` a link to the file or, where the file system has no links, or no more of them, a
  // durable copy.
  absl::Status LinkTo(const std::string& place) const;

 private:
  const std::string path_;
  const StoredFile stored_;
};

// Thread-safe. Nothing else may change the directory.
class SharedFiles {
 public:
  // Creates `directory` if necessary and removes leftovers of a crash and what RemoveUnused()
  // removes.
  static absl::StatusOr<std::unique_ptr<SharedFiles>> Open(std::string directory);

  // Writes the file unless there is one with the same contents, and returns once it is durable.
  // Calls `file.write` once or twice. The file stays at least as long as the returned object.
  // Errors as StoreFile().
  absl::StatusOr<std::shared_ptr<const SharedFile>> Add(const NewFile& file)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Removes the files to which there is no link and no object.
  absl::Status RemoveUnused() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit SharedFiles(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Write(const std::string& path, const NewFile& file, const StoredFile& expected)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string directory_;

  absl::Mutex mu_;
  std::map<std::string, std::weak_ptr<const SharedFile>> used_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
