// Checkpoints of one trainer.
//
//   <directory>/step-000000120-sequence-000000131/manifest.json   see manifest.h
//                                                 <files>
//
// They are ordered by the time when they were written. After a restore of an older checkpoint, the
// newest one may have a lower step than others.
//
// A restore starts a new line of history, in which the same step and sequence have another state.
// Names of its checkpoints end in its number, step-000000120-sequence-000000131-line-7, so a name
// never refers to two states.
#pragma once

#include <cstddef>
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
#include "server/storage/journal_records.h"
#include "server/storage/manifest.h"
#include "server/storage/sealed_directory.h"
#include "server/storage/shared_files.h"

namespace braid {

struct CheckpointInfo {
  std::string name;
  int64_t step = 0;
  int64_t sequence = 0;
  int64_t bytes = 0;  // of all its files, shared ones included
  absl::Time created;
  int64_t line = 0;        // of the operations that follow it
  bool automatic = false;  // neither a user nor a policy asked for it; see Retain()
};

struct DamagedCheckpoint {
  std::string name;
  // DATA_LOSS with the file; FAILED_PRECONDITION if a later version of the server wrote it.
  absl::Status status;
};

// The checkpoints that Retain() keeps, besides the newest one and damaged ones.
struct CheckpointRetention {
  int64_t keep = 0;   // number of newest ones, not counting automatic ones; 0: all
  std::string name;   // also the one with this name, which does not count
  std::string whole;  // also this one: a restart needs it
  bool all = false;   // all of them
  // Oldest record of the journal's history. Up to kHistoryCheckpoints from which its operations can
  // be replayed are kept, too, spread over its period. nullopt: no history.
  std::optional<JournalPosition> history;
};
inline constexpr size_t kHistoryCheckpoints = 16;

struct LoadedCheckpoint {
  CheckpointInfo info;
  // JSON object that was passed to Write().
  std::string state;
  // Paths of the files, by name. Valid until Retain() removes or Write() replaces the checkpoint.
  std::map<std::string, std::string> files;
};

// Owned by a trainer. List(), newest() and damaged() are thread-safe. The other methods block on
// the disk and must be called by one thread at a time. Nothing else may change the directory.
class CheckpointStore {
 public:
  // Creates `directory` if necessary, removes leftovers of an interrupted Write() or Retain(), and
  // checks manifests and file sizes, but not file contents.
  // `shared`: outlives the object.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(std::string directory,
                                                               SharedFiles* shared);

  // Sets the files that all checkpoints of later calls of Write() contain in addition. Returns once
  // they are durable. An error, as of SharedFiles::Add(), changes nothing.
  absl::Status Share(const std::vector<NewFile>& files);

  // Writes a checkpoint and returns once it is durable. Replaces a checkpoint with the same step,
  // sequence and line, which has the same state. An error changes nothing: RESOURCE_EXHAUSTED if
  // the disk is full; the error of a file's `write`; INVALID_ARGUMENT if `state` is not a JSON
  // object or a file name is invalid.
  absl::StatusOr<CheckpointInfo> Write(int64_t step, int64_t sequence, std::string state,
                                       const std::vector<NewFile>& files, bool automatic = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint of an earlier state that replaces the current one, and starts a new line.
  absl::StatusOr<CheckpointInfo> WriteRestored(int64_t step, int64_t sequence, std::string state,
                                               const std::vector<NewFile>& files)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes later lines larger than `last`, of which the journal has records.
  void SkipLines(int64_t last);
  // Links checkpoint `name` into `directory`, the directory of a store that is not open. Errors as
  // Read(), but does not verify the files.
  absl::Status CopyTo(absl::string_view name, const std::string& directory) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Verifies all files before it returns. NOT_FOUND for a name that is not in List(). A checkpoint
  // that turns out to be damaged moves to damaged() with the returned status.
  absl::StatusOr<LoadedCheckpoint> Read(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the newest checkpoint that is not damaged and logs those that it skips. NOT_FOUND if
  // there is none. Does not skip a newer checkpoint that a later version of the server wrote, but
  // returns its error.
  absl::StatusOr<LoadedCheckpoint> ReadNewest() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes `name` the newest checkpoint, replaces its state by `state` and starts a new line. Call
  // it after a restore, so that the next start continues from there. Errors as Read() and Write().
  absl::StatusOr<CheckpointInfo> MakeNewest(absl::string_view name, std::string state)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Removes the checkpoints that `retention` does not keep. Damaged ones do not count.
  absl::Status Retain(const CheckpointRetention& retention) ABSL_LOCKS_EXCLUDED(mu_);

  // Oldest first.
  std::vector<CheckpointInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<CheckpointInfo> newest() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<DamagedCheckpoint> damaged() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  CheckpointStore(std::string directory, SharedFiles* shared);

  absl::Status Scan() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CheckpointInfo> WriteOnLine(int64_t line, int64_t step, int64_t sequence,
                                             std::string state, const std::vector<NewFile>& files,
                                             bool automatic) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& name) const;
  // Returns the name if it is in List(), else the error of Read().
  absl::StatusOr<std::string> Find(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the error of a checkpoint from a later version that is newer than newest().
  absl::Status Unreadable() const ABSL_LOCKS_EXCLUDED(mu_);
  void PutLast(CheckpointInfo info) ABSL_LOCKS_EXCLUDED(mu_);
  void SetAside(const std::string& name, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string PathOf(absl::string_view name) const;

  const std::string directory_;
  SharedFiles* const shared_;
  std::vector<NamedSharedFile> shared_files_;  // of each checkpoint
  // Used by the thread that writes: serial number and line of the next checkpoint. The number of a
  // line is the serial number of the restore that started it, or 0.
  int64_t next_serial_ = 1;
  int64_t line_ = 0;

  mutable absl::Mutex mu_;
  std::vector<CheckpointInfo> infos_ ABSL_GUARDED_BY(mu_);
  std::vector<DamagedCheckpoint> damaged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
