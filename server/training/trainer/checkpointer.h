// Writes a trainer's checkpoints in the background.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_thread.h"
#include "server/storage/checkpoint_store.h"
#include "server/training/trainer/checkpoint_format.h"
#include "server/training/trainer/host_model.h"

namespace braid {

// Thread-safe.
class Checkpointer {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<CheckpointInfo>)>;

  // `model`: for the model's files; outlives it. `keep`: how many are kept.
  Checkpointer(std::unique_ptr<CheckpointStore> store, HostModel* model, int64_t keep);

  // Queues `checkpoint`. `done` is called by the background thread.
  void Write(TrainerCheckpoint checkpoint, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // How many are queued or being written.
  int64_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

  // A checkpoint's contents; the newest for an empty name. Waits for those that are being written.
  struct Loaded {
    CheckpointInfo info;
    TrainerCheckpoint checkpoint;
  };
  absl::StatusOr<Loaded> Read(const std::string& name);
  // The trainer stands at `name` again, with `state` in place of its own: a restart is to go on
  // from there.
  absl::Status MakeNewest(const std::string& name, const std::string& state);

  // The oldest first.
  std::vector<CheckpointInfo> List() const { return store_->List(); }

 private:
  absl::StatusOr<CheckpointInfo> WriteNow(const TrainerCheckpoint& checkpoint);

  const std::unique_ptr<CheckpointStore> store_;
  HostModel* const model_;
  const int64_t keep_;

  mutable absl::Mutex mu_;
  int64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;

  // Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
