// The checkpoints of one trainer.
//
//   <directory>/step-000000120-sequence-000000131/manifest.json   see manifest.h
//                                                 <files>
//
// Their order is that in which they were written: after a return to an older one, the newest may
// have a lower step than others.
//
// With a return another line begins, in which the same step and sequence are of another state. Its
// checkpoints are called after it, step-000000120-sequence-000000131-line-7, so that a name once
// given is never another state's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/storage/manifest.h"
#include "server/storage/sealed_directory.h"

namespace braid {

struct CheckpointInfo {
  std::string name;
  int64_t step = 0;
  int64_t sequence = 0;
  // Of its files.
  int64_t bytes = 0;
  absl::Time created;
};

struct DamagedCheckpoint {
  std::string name;
  // DATA_LOSS naming the file; FAILED_PRECONDITION if a later version of the server wrote it.
  absl::Status status;
};

struct LoadedCheckpoint {
  CheckpointInfo info;
  // The JSON object that Write() was given.
  std::string state;
  // Their paths, by name. They stay until Retain() removes them, or Write() replaces them.
  std::map<std::string, std::string> files;
};

// List(), newest() and damaged() may be called by any thread at any time. The others go to the disk
// and are for one thread at a time. Nobody else may change the directory meanwhile.
class CheckpointStore {
 public:
  // Makes `directory` if there is none, removes what an interrupted Write() or Retain() left, and
  // looks at the manifests and the sizes of files, not at their contents.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(std::string directory);

  // Returns when the checkpoint is on the disk. It replaces one of the same step and sequence in
  // this line, which is of the same state. If it fails, what was there stays: RESOURCE_EXHAUSTED
  // where the disk is full; what a file's `write` returned; INVALID_ARGUMENT if `state` is no JSON
  // object or a file has a bad name.
  absl::StatusOr<CheckpointInfo> Write(int64_t step, int64_t sequence, std::string state,
                                       const std::vector<NewFile>& files) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads every file through before it returns. NOT_FOUND for a name that List() does not know. One
  // that is damaged is listed as such from now on, with the status that this returns.
  absl::StatusOr<LoadedCheckpoint> Read(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // The newest that is not damaged; what it passes over, it logs. NOT_FOUND if there is none. One
  // further on that is not damaged, but cannot be read by this server, is not passed over.
  absl::StatusOr<LoadedCheckpoint> ReadNewest() ABSL_LOCKS_EXCLUDED(mu_);

  // Has `name` be the newest, with `state` in place of its own, and begins another line: to be
  // called after a return to it, lest the next start go on from one that was left behind. NOT_FOUND
  // as Read(), INVALID_ARGUMENT as Write().
  absl::Status MakeNewest(absl::string_view name, std::string state) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes all but the newest `keep`; 0 keeps all. Those that are damaged stay, and do not count.
  absl::Status Retain(int64_t keep) ABSL_LOCKS_EXCLUDED(mu_);

  // The oldest first.
  std::vector<CheckpointInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<CheckpointInfo> newest() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<DamagedCheckpoint> damaged() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit CheckpointStore(std::string directory);

  absl::Status Scan() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& name) const;
  // One of List().
  absl::StatusOr<std::string> Find(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // The status of one that is in the way of going on from the newest.
  absl::Status Unreadable() const ABSL_LOCKS_EXCLUDED(mu_);
  void PutLast(CheckpointInfo info) ABSL_LOCKS_EXCLUDED(mu_);
  void SetAside(const std::string& name, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string PathOf(absl::string_view name) const;

  const std::string directory_;
  // Counts the writes; of the next one. Of the thread that writes.
  int64_t next_serial_ = 1;
  // Of the next one: 0, or the serial number that a return was given. Of the thread that writes.
  int64_t line_ = 0;

  mutable absl::Mutex mu_;
  std::vector<CheckpointInfo> infos_ ABSL_GUARDED_BY(mu_);
  std::vector<DamagedCheckpoint> damaged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
