// Table of the served models by name and version.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/expiry_thread.h"
#include "server/batching/request_queue.h"
#include "server/models/model_config.h"
#include "server/telemetry/metrics.h"

namespace braid {

class BatchQueue;
struct LoadedVersion;
class RowTestCache;
class Worker;

// State of a version for RepositoryIndex. version 0: the model as a whole.
struct ModelState {
  std::string name;
  int64_t version = 0;
  bool ready = false;
  // Why it is not ready; empty if it was never loaded. If it is ready: why the last load failed;
  // empty if it succeeded.
  std::string reason;
};

// Versions of a model that requests get.
struct Routing {
  // Version for requests without a version.
  int64_t current = 0;
  // True if a load from the repository does not change `current`.
  bool pinned = false;
  // Versions by label. They are served in addition to those of the version policy.
  std::map<std::string, int64_t> labels = {};
};

// Memory of a served version.
struct ServedVersion {
  std::string model;
  int64_t version = 0;
  // Bytes per device slot.
  std::vector<std::pair<std::string, int64_t>> memory;
};

// Thread-safe; owned by the server. A model keeps the versions that its policy selects among those
// up to the current one, and the labelled ones. A version that leaves the table completes the
// requests in its queue before it is freed.
class ServedModels {
 public:
  // workers, metrics: outlive it. row_tests_path: see RowTestCache.
  ServedModels(std::vector<Worker*> workers, Metrics* metrics, std::string row_tests_path = "");
  ~ServedModels();

  // Replaces all versions of a model by `versions`, at least one. Keeps the pinned version,
  // labelled ones, and later ones with an origin. The highest becomes current, unless another is
  // pinned.
  void Replace(std::vector<LoadedVersion> versions) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds one version and makes it current.
  void Serve(LoadedVersion version) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds one version and applies `routing`, if `config` is still the result of FindConfig(), for
  // which the version was made. NOT_FOUND if the model is no longer served; UNAVAILABLE if it was
  // reloaded since.
  absl::Status ServeVersion(LoadedVersion version, const std::shared_ptr<const ModelConfig>& config,
                            Routing routing) ABSL_LOCKS_EXCLUDED(mu_);
  // Same, for a result of MakeQueue().
  absl::Status ServeQueue(const std::shared_ptr<BatchQueue>& queue,
                          const std::shared_ptr<const ModelConfig>& config, Routing routing)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Serves the version of `queue` with another configuration from now on: requests that wait in
  // `queue` keep the old one. Returns false if `queue` is not in the table.
  bool Reconfigure(const std::shared_ptr<const BatchQueue>& queue, const ModelConfig& config)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Applies `routing` to the served versions. NOT_FOUND if `name` is not served.
  absl::Status SetRouting(absl::string_view name, Routing routing) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a version that is neither current nor labelled. No-op if it is not served.
  void RemoveVersion(absl::string_view name, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Records why a version failed to load, until a load succeeds; served versions stay. version 0:
  // the model.
  void MarkFailed(const std::string& name, int64_t version, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Lists a model that was never loaded, unless it is listed already.
  void Register(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all versions of `name` and records `reason` for them. NOT_FOUND if there is no such
  // model.
  absl::Status Remove(absl::string_view name, absl::string_view reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all versions of `name` and its entry in the list.
  void Forget(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the next unused version number. NOT_FOUND if `name` is not served; FAILED_PRECONDITION
  // if its version policy excludes that number.
  absl::StatusOr<int64_t> NextVersion(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Marks a version number as used. NOT_FOUND if `name` is not served.
  absl::Status ReserveVersion(absl::string_view name, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the queue of a version; version 0: the current one. NOT_FOUND, listing what is served.
  absl::StatusOr<std::shared_ptr<RequestQueue>> Find(absl::string_view name, int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the queue of the version with a label. NOT_FOUND, listing the labels.
  absl::StatusOr<std::shared_ptr<RequestQueue>> FindLabel(absl::string_view name,
                                                          absl::string_view label) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the queue with access to its replicas. NOT_FOUND like Find().
  absl::StatusOr<std::shared_ptr<BatchQueue>> FindReplicas(absl::string_view name,
                                                           int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Served versions, ascending. NOT_FOUND if there is none.
  absl::StatusOr<std::vector<int64_t>> Versions(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // All versions of a model, by number. Empty for an unknown model.
  std::vector<ModelState> States(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // All versions of all models, by name and number.
  std::vector<ModelState> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // All served versions.
  std::vector<ServedVersion> Served() const ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the queue of a version that is not in the table. It lives as long as the caller keeps it.
  std::shared_ptr<BatchQueue> MakeQueue(LoadedVersion version) const;
  // Same, for another configuration of the version of `before`, with the same replicas.
  std::shared_ptr<BatchQueue> MakeQueue(ModelConfig config, const BatchQueue& before) const;

  // Configuration of the last load; a different object after each load. NOT_FOUND if `name` is not
  // served.
  absl::StatusOr<std::shared_ptr<const ModelConfig>> FindConfig(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // All workers of the server.
  const std::vector<Worker*>& workers() const { return workers_; }
  Metrics* metrics() const { return metrics_; }
  // Results of row independence tests of versions loaded earlier.
  RowTestCache* row_tests() { return row_tests_.get(); }

 private:
  using Removed = std::vector<std::shared_ptr<BatchQueue>>;
  struct Entry {
    std::shared_ptr<const ModelConfig> config;  // null: never served
    std::map<int64_t, std::shared_ptr<BatchQueue>> served;
    // Per version that is not served or failed to load. 0: the model.
    std::map<int64_t, std::string> reasons;
    int64_t highest = 0;  // including removed versions
    Routing routing;

    // Returns the queue for requests without a version. There is a served version.
    const std::shared_ptr<BatchQueue>& current() const;
    bool has_label(int64_t version) const;
  };

  // Makes the workers take batches from `queue`.
  static void Start(const std::shared_ptr<BatchQueue>& queue);
  // Returns the place of `queue` in the table, or nullptr.
  std::shared_ptr<BatchQueue>* FindPlace(const BatchQueue& queue)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the entry of a model with a served version. NOT_FOUND.
  absl::StatusOr<const Entry*> FindEntry(absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void AddStates(const std::string& name, const Entry& entry,
                        std::vector<ModelState>* states);
  // Add to `entry`, and remove versions that are no longer to be served. Move removed queues to
  // `removed`, to be freed after the lock is released.
  static void Add(const std::shared_ptr<BatchQueue>& queue, Entry* entry, Removed* removed);
  static void Trim(Entry* entry, Removed* removed);

  const std::vector<Worker*> workers_;
  Metrics* const metrics_;
  const std::unique_ptr<RowTestCache> row_tests_;
  const std::unique_ptr<ExpiryThread> expiries_ = std::make_unique<ExpiryThread>();

  mutable absl::Mutex mu_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
