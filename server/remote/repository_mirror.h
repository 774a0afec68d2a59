// Local mirror of a model repository in S3.
//
//   <directory>/objects/   contents (object_copies.h)
//   <directory>/models/    the repository, of hard links to them
//   <directory>/next/      staging folder
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/remote/object_copies.h"
#include "server/remote/object_store.h"

namespace braid {

// Thread-compatible: used by the thread that loads models. One process may use a directory at a
// time.
class RepositoryMirror {
 public:
  // Creates the directories if necessary. `path`: "bucket/key" of the repository. `store` outlives
  // the object.
  static absl::StatusOr<std::unique_ptr<RepositoryMirror>> Open(const ObjectStore* store,
                                                                std::string path,
                                                                std::string directory);

  // Directory of the mirror in `directory`, as Open() takes it.
  static std::string ModelsIn(const std::string& directory);

  // Makes the mirror equal to the repository. Copies only objects that changed. A version's folder
  // is replaced as a whole. Blocks until all objects are copied. After an error, each
  // folder is either unchanged or up to date. Errors as ObjectStore::Find() and
  // ObjectCopies::Fetch(), and if there are no objects.
  absl::Status Update();

 private:
  // Object and its path in the repository.
  using Entry = std::pair<std::string, const StoredObject*>;

  RepositoryMirror(const ObjectStore* store, std::string path, std::string directory,
                   std::unique_ptr<ObjectCopies> copies)
      : store_(store),
        path_(std::move(path)),
        directory_(std::move(directory)),
        copies_(std::move(copies)) {}

  // Replaces `unit`, a file or the folder of a version, unless it has just these entries.
  absl::Status Replace(const std::string& unit, const std::vector<Entry>& entries) const;
  // Returns true if the unit has just these entries.
  bool IsCurrent(const std::string& unit, const std::vector<Entry>& entries) const;

  const ObjectStore* const store_;
  const std::string path_;
  const std::string directory_;
  const std::unique_ptr<ObjectCopies> copies_;
};

}  // namespace braid
