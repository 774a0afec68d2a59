// Local copies of objects.
//
//   <directory>/objects/<key>        contents of an object; the key is a checksum of its path, size
//                                    and version, so that a copy never becomes out of date
//   <directory>/sets/<key>/<path>    hard links to the objects of a data set, under their own names
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

// Called while objects are copied, at least every 200 ms, with the bytes so far and of all objects.
// An error ends the copying and is returned.
using CopyProgress = std::function<absl::Status(int64_t bytes, int64_t total)>;

// Copy of an object, or of all objects below a prefix, which is kept as long as this exists.
struct CopiedSet {
  std::string root;      // directory of this set
  std::string path;      // local file, or directory
  std::string identity;  // text that differs if an object differs
};

// Thread-safe. One process may use a directory at a time.
class ObjectCopies {
 public:
  // Creates the directory if necessary and removes what an interrupted run left. `max_bytes` limits
  // the sum of the copies. `store` outlives the object.
  static absl::StatusOr<std::unique_ptr<ObjectCopies>> Open(const ObjectStore* store,
                                                            std::string directory,
                                                            int64_t max_bytes);

  // Returns the copy of the object at `path` ("bucket/key"), or of the objects below it, as they
  // are now, without those with a part of the name that starts with '.' or '_'. Copies those that
  // are missing, up to 8 parts at a time. Removes sets that are not in use, the least recently used
  // first, to make room. ABORTED if an object changes meanwhile; RESOURCE_EXHAUSTED if the objects
  // exceed the limit, or with those in use; errors of ObjectStore.
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

  // Waits until nobody else copies the set. Returns it if it is there. Otherwise returns null and
  // reserves space for the objects that are missing; the caller must call Release().
  absl::StatusOr<std::shared_ptr<const CopiedSet>> UseOrClaim(const std::string& key,
                                                              const CopiedSet& set,
                                                              const Objects& objects,
                                                              const CopyProgress& progress)
      ABSL_LOCKS_EXCLUDED(mu_);
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
  // Sets that were returned. Those that expired are not in use any more.
  std::map<std::string, std::weak_ptr<const CopiedSet>> in_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
