// Writes published versions to the data directory in the background.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/durability.h"
#include "server/base/new_file.h"
#include "server/base/task_thread.h"
#include "server/storage/versions/version_store.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/model_metrics.h"

namespace braid {

// A version that is served and shall become durable.
struct VersionToWrite {
  std::string model;
  int64_t version = 0;
  VersionOrigin origin;
  std::vector<NewFile> files;
  // Writes the version even if another one replaces it.
  bool must_write = false;
  // Receives the state, for other readers.
  std::shared_ptr<std::atomic<Durability>> durability;
};

// Owned by the Publisher. Thread-safe. Writes one version at a time, in the order of Add().
class VersionWriter {
 public:
  struct Unwritten {
    VersionOrigin origin;
    DurabilityState state;

    bool is_pending() const { return state.durability == Durability::kPending; }
  };

  // `store` and `metrics` outlive the object.
  VersionWriter(const VersionStore* store, Metrics* metrics);
  // Writes the versions that wait.
  ~VersionWriter();

  // Blocks while many versions wait.
  void WaitForRoom() const ABSL_LOCKS_EXCLUDED(mu_);
  // Queues a version. Replaces the state of an earlier attempt to write it.
  void Add(VersionToWrite version) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the versions of `model` below `newer` that wait, need not be written and are not served.
  // Keeps the state of a few of them.
  void Supersede(const std::string& model, int64_t newer,
                 absl::FunctionRef<bool(int64_t version)> is_served) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the state of a version; nullopt if it was not added, or is durable.
  std::optional<DurabilityState> Find(const std::string& model, int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the versions of `model` that were added and are not durable.
  std::map<int64_t, Unwritten> List(const std::string& model) const ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a version that will not be written. Returns false if there is none.
  bool Forget(const std::string& model, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until a version is not pending any more. Writes it even if another one replaces it.
  void Wait(const std::string& model, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no version is pending that trainer `trainer_id` published up to operation
  // `sequence`.
  void WaitForTrainer(const std::string& trainer_id, int64_t sequence) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no version is pending.
  void Flush() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<std::string, int64_t>;
  struct Entry {
    VersionToWrite version;
    DurabilityState state;
    absl::Time added;
    bool writing = false;
    std::unique_ptr<ModelMetrics> metrics;
  };

  // Writes the version unless it was superseded. On the writer's thread.
  void Write(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the wait for a version. Removes a durable one, whose state the store knows.
  void Settle(const Key& key, DurabilityState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t CountPending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const VersionStore* const store_;
  Metrics* const metrics_;

  mutable absl::Mutex mu_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
