// Writes a trainer's checkpoints in the background.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_pool.h"
#include "server/storage/checkpoint_store.h"
#include "server/training/trainer/checkpoint_format.h"
#include "server/training/trainer/host_model.h"

namespace braid {

// A checkpoint that was read.
struct StoredCheckpoint {
  CheckpointInfo info;
  TrainerCheckpoint contents;
  // Paths of the files, by name; see LoadedCheckpoint.
  std::map<std::string, std::string> files;
};

// Reads a checkpoint; an empty name means the newest. Errors as CheckpointStore::Read(), and
// DATA_LOSS naming what is missing or invalid.
absl::StatusOr<StoredCheckpoint> ReadCheckpoint(CheckpointStore& store, const std::string& name);

// Reads the checkpoint from which a trainer with a journal continues: the newest one, or if that
// was written while a graph was kept, an earlier one of the same line. Replaying the journal from
// there builds the graph again.
absl::StatusOr<StoredCheckpoint> ReadForRestart(CheckpointStore& store);

// Owned by a trainer. Thread-safe.
class Checkpointer {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;

  // `model`: the model that the trainer started from, whose files all checkpoints share; outlives
  // the object. `keep`: number of checkpoints to keep, 0: all. `wait`: called before a checkpoint
  // of the state after operation `sequence` is written; returns once the operations up to it have
  // written their own files. `retain`: sets `history` and `all` of what is kept. `pool`: outlives
  // the object.
  Checkpointer(std::unique_ptr<CheckpointStore> store, const HostModel* model, int64_t keep,
               std::function<void(int64_t sequence)> wait,
               std::function<void(CheckpointRetention*)> retain, TaskPool* pool);

  // Queues `checkpoint`. A background thread calls `done`.
  void Write(TrainerCheckpoint checkpoint, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of checkpoints that are queued or being written.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

  // Calls ReadCheckpoint() after queued checkpoints are written. Blocks.
  absl::StatusOr<StoredCheckpoint> Read(const std::string& name);
  // Makes checkpoint `name` the newest, with `state` replacing its own, so that a restart continues
  // from it.
  absl::StatusOr<CheckpointInfo> MakeNewest(const std::string& name, const std::string& state);
  // Writes a checkpoint of an earlier state and makes it the newest.
  absl::StatusOr<CheckpointInfo> WriteRestored(const TrainerCheckpoint& checkpoint);

  // Tells that the trainer has restored checkpoint `name`, which has its whole state.
  void SetWhole(std::string name);
  // Keeps checkpoint `name` besides the newest ones, instead of the one of the last call. The
  // object does not remember it over a restart of the server.
  void Keep(std::string name) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `use` while no checkpoint is written or deleted. Blocks.
  absl::Status Use(absl::FunctionRef<absl::Status(CheckpointStore&)> use);

  // Returns the checkpoints, oldest first.
  std::vector<CheckpointInfo> List() const { return store_->List(); }

 private:
  absl::StatusOr<CheckpointInfo> WriteNow(TrainerCheckpoint checkpoint);
  // Deletes the checkpoints that are not kept.
  void Retain() ABSL_LOCKS_EXCLUDED(mu_);
  // Retains after a restore, whose result it returns.
  absl::StatusOr<CheckpointInfo> EndRestore(absl::StatusOr<CheckpointInfo> newest)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the files that checkpoints share.
  absl::Status ShareBase();

  const std::unique_ptr<CheckpointStore> store_;
  const HostModel* const model_;
  const int64_t keep_;
  const std::function<void(int64_t sequence)> wait_;
  const std::function<void(CheckpointRetention*)> retain_;
  // Used by the queue's tasks.
  bool shares_base_ = false;
  // The newest one that was written or restored while no graph was kept. A restart needs it: see
  // ReadForRestart().
  std::string whole_;

  mutable absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::string kept_ ABSL_GUARDED_BY(mu_);

  // Last member: ends first.
  TaskQueue queue_;
};

}  // namespace braid
