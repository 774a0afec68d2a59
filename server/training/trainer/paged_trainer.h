// A trainer that is freed while nobody uses it, and read from its newest checkpoint when it is used
// again.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/task_pool.h"
#include "server/training/trainer_spec.h"

namespace braid {

class Trainer;
struct LoadedVersion;

// A trainer in memory.
struct LoadedTrainer {
  // The model that it started from, kept for other trainers of the same model. nullptr: it is
  // served.
  std::shared_ptr<const LoadedVersion> base;
  std::shared_ptr<Trainer> trainer;
};

// Owned by the TrainerRegistry. Thread-safe.
class PagedTrainer {
 public:
  // Reads the trainer from its newest checkpoint. Blocks.
  using Load = std::function<absl::StatusOr<LoadedTrainer>()>;
  // Gets the trainer, for the duration of the call, or the error of Load. Must not block.
  using Use = absl::AnyInvocable<void(const absl::StatusOr<Trainer*>&)>;

  // A trainer in memory. `load`: nullptr keeps it there. `pool` outlives the object; its threads
  // read and write checkpoints.
  PagedTrainer(LoadedTrainer loaded, Load load, TaskPool* pool);
  // A trainer on disk. `info`: what info() returns until it has been read. Has the name, the model,
  // the idle timeout and the counters.
  PagedTrainer(TrainerInfo info, Load load, TaskPool* pool);
  // Waits for the running operation, for checkpoints that are being written, and for Load. Calls
  // and operations that wait end with NOT_FOUND.
  ~PagedTrainer();

  // Calls `use`, in the order of the calls: at once if the trainer is in memory, otherwise on a
  // thread of the pool after the trainer has been read. RESOURCE_EXHAUSTED if too many calls wait.
  void Call(Use use) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `use` only if the trainer is in memory. Returns whether it is.
  bool CallInMemory(Use use) ABSL_LOCKS_EXCLUDED(mu_);

  // Starts to save and free the trainer, unless it is in use. Returns whether it is being freed.
  bool PageOut() ABSL_LOCKS_EXCLUDED(mu_);
  // Saves the trainer, and makes its later operations end with NOT_FOUND. FAILED_PRECONDITION if
  // it is in use; the error of the checkpoint. Blocks.
  absl::Status Retire() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& name() const { return name_; }
  const std::string& model() const { return model_; }
  absl::Duration idle_timeout() const { return idle_timeout_; }
  // While the trainer is on disk, its state when it was saved, without memory. Incomplete until
  // has_info().
  TrainerInfo info() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether the trainer has been in memory.
  bool has_info() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the memory that the trainer uses. Empty: it is on disk.
  std::vector<DeviceMemory> memory() const ABSL_LOCKS_EXCLUDED(mu_);
  TrainerState state() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when the last call was made.
  absl::Time last_used() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Place { kMemory, kLeaving, kDisk, kComing, kGone };

  // Counts a call that uses the trainer in memory, which stays there until Leave().
  Trainer* Enter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // Queues a call until the trainer has been read, or returns why not.
  absl::Status Wait(Use* use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoadNow() ABSL_LOCKS_EXCLUDED(mu_);
  void SaveNow() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the waiting calls with `trainer`, which then is in memory.
  void Arrive(const LoadedTrainer& loaded) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string name_;
  const std::string model_;
  const absl::Duration idle_timeout_;
  const Load load_;

  mutable absl::Mutex mu_;
  Place place_ ABSL_GUARDED_BY(mu_);
  LoadedTrainer loaded_ ABSL_GUARDED_BY(mu_);  // empty: on disk
  TrainerInfo info_ ABSL_GUARDED_BY(mu_);      // as of the time when it was saved
  bool info_complete_ ABSL_GUARDED_BY(mu_);
  std::vector<Use> waiting_ ABSL_GUARDED_BY(mu_);
  int users_ ABSL_GUARDED_BY(mu_) = 0;  // calls in progress
  absl::Time last_used_ ABSL_GUARDED_BY(mu_);

  // Last member: ends first.
  TaskQueue queue_;
};

}  // namespace braid
