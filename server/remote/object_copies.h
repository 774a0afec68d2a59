// Local copies of objects.
//
//   <directory>/objects/<key>        contents of an object; the key is a checksum of its path, size
//                                    and version, so that a copy never becomes out of date
//   <directory>/sets/<key>/<path>    hard links to the objects of a dataset, under their own names
//
// A complete copy survives a restart; one that was interrupted does not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/remote/object_store.h"

namespace braid {

// Called at least every 200 ms while objects are copied, with the copied bytes and the total. If it
// returns an error, the copying ends with that error.
using CopyProgress = std::function<absl::Status(int64_t bytes, int64_t total)>;

// Copy of an object, or of all objects below a prefix. The copy is kept while this object exists.
struct CopiedSet {
  // Replaces the paths of local files in the message of an error by the paths of the objects.
  absl::Status NameObjects(const absl::Status& error) const;

  std::string root;      // directory of this set, absolute
  std::string path;      // local file, or directory, absolute
  std::string identity;  // text that differs if an object differs
};

// Keeps local copies of objects. Thread-safe. One process may use a directory at a time.
class ObjectCopies {
 public:
  // Creates the directory if necessary and removes what an interrupted run left. `max_bytes` limits
  // the sum of the copies. `store` outlives the object.
  static absl::StatusOr<std::unique_ptr<ObjectCopies>> Open(const ObjectStore* store,
                                                            std::string directory,
                                                            int64_t max_bytes);

  // Returns the copy of the object at `path` ("bucket/key"), or of the objects below it, in their
  // current state. Skips objects if a part of their name starts with '.'. Copies missing
  // objects, up to 8 parts at a time. To make room, removes sets that are not in use, the least
  // recently used first. ABORTED if an object changes during the call; RESOURCE_EXHAUSTED if the
  // objects, together with the sets in use, exceed the limit; errors of ObjectStore.
  absl::StatusOr<std::shared_ptr<const CopiedSet>> Copy(const std::string& path,
                                                        const CopyProgress& progress)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Copies the objects that are missing, whatever the limit. Errors as Copy().
  absl::Status Fetch(const std::vector<StoredObject>& objects, const CopyProgress& progress) const;
  // Returns the path of an object's copy.
  std::string CopyOf(const StoredObject& object) const;
  // Removes the copies without a link, except those that are being linked.
  absl::Status RemoveUnlinked() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  ObjectCopies(const ObjectStore* store, std::string directory, int64_t max_bytes)
      : store_(store), directory_(std::move(directory)), max_bytes_(max_bytes) {}

  using Objects = std::vector<StoredObject>;

  // Waits until no other call copies the set. Returns the set if it exists. Otherwise returns null
  // and reserves space for the objects that are missing; the caller must call Release().
  absl::StatusOr<std::shared_ptr<const CopiedSet>> UseOrClaim(const std::string& key,
                                                              const CopiedSet& set,
                                                              const Objects& objects,
                                                              const CopyProgress& progress)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Same for a set of `total` bytes that no other call copies.
  absl::StatusOr<std::shared_ptr<const CopiedSet>> UseOrClaimFree(const std::string& key,
                                                                  const CopiedSet& set,
                                                                  const Objects& objects,
                                                                  int64_t total)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(const std::string& key, const Objects& objects) ABSL_LOCKS_EXCLUDED(mu_);
  // Links the objects into the directory of the set.
  absl::Status Link(const std::string& root, const Objects& objects) const;
  std::shared_ptr<const CopiedSet> Use(const std::string& key, const CopiedSet& set)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes sets that are not in use until `bytes` more fit.
  absl::Status MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RemoveUnlinkedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<int64_t> CopiedBytes() const;

  std::string ObjectsDirectory() const;
  std::string SetsDirectory() const;

  const ObjectStore* const store_;
  const std::string directory_;
  const int64_t max_bytes_;

  absl::Mutex mu_;
  // Sets that are being copied, with the bytes reserved for them.
  std::map<std::string, int64_t> copying_ ABSL_GUARDED_BY(mu_);
  // Keys of the objects of those sets.
  std::multiset<std::string> wanted_ ABSL_GUARDED_BY(mu_);
  // Sets that were returned. An expired one is no longer in use.
  std::map<std::string, std::weak_ptr<const CopiedSet>> in_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
