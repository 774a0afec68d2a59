// The models that are served, by name and version, and how a version takes the place of another.
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

// A version of a model as RepositoryIndex lists it; version 0: the model as a whole.
struct ModelState {
  std::string name;
  int64_t version = 0;
  bool ready = false;
  // Why it is not ready; empty: it was never asked for.
  std::string reason;
};

// A version that is served, and what its replicas take.
struct ServedVersion {
  std::string model;
  int64_t version = 0;
  // By device slot, in bytes.
  std::vector<std::pair<std::string, int64_t>> memory;
};

// Thread-safe. A version that is taken out of the table answers what waits in its queue, and is
// freed then.
class ServedModels {
 public:
  // The workers and `metrics` outlive it. row_tests_path: as in RowTestCache.
  ServedModels(std::vector<Worker*> workers, Metrics* metrics, std::string row_tests_path = "");
  ~ServedModels();

  // Serves `versions`, at least one, all of the model that their configuration names, in place of
  // those before. A later version that a trainer published stays, as the version policy says.
  void Replace(std::vector<LoadedVersion> versions) ABSL_LOCKS_EXCLUDED(mu_);
  // Serves one version more: under the policy `latest` in place of the oldest. Later versions are
  // served no more.
  void Serve(LoadedVersion version) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a model that is served, and whose FindConfig() gave `current` when the version was
  // made for it. NOT_FOUND if the model is served no more, UNAVAILABLE if it has been loaded again
  // since.
  absl::Status ServeVersion(LoadedVersion version,
                            const std::shared_ptr<const ModelConfig>& current)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Lists a version that could not be loaded; what is served stays. Version 0: the model.
  void ServeNot(const std::string& name, int64_t version, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Lists a model that was never asked for, unless it is listed.
  void Mention(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Serves no version of `name` any more, and lists them with `reason`. NOT_FOUND if there is no
  // such model.
  absl::Status Remove(absl::string_view name, absl::string_view reason) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and lists the model no more.
  void Forget(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // The number after the highest that `name` has had. NOT_FOUND if it is not served,
  // FAILED_PRECONDITION if its version policy names others.
  absl::StatusOr<int64_t> NextVersion(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // `version` of `name` is taken, though not served. NOT_FOUND if `name` is not served.
  absl::Status ReserveVersion(absl::string_view name, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

  // The queue of a version; `version` 0: the highest that is served. NOT_FOUND, saying what there
  // is.
  absl::StatusOr<std::shared_ptr<RequestQueue>> Find(absl::string_view name, int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, with the replicas behind it.
  absl::StatusOr<std::shared_ptr<BatchQueue>> FindReplicas(absl::string_view name,
                                                           int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The versions that are served, ascending. NOT_FOUND if there is none.
  absl::StatusOr<std::vector<int64_t>> Versions(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // All versions of all models, by name and number.
  std::vector<ModelState> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // All that is served.
  std::vector<ServedVersion> Served() const ABSL_LOCKS_EXCLUDED(mu_);

  // The configuration with which `name` was loaded last, another object each time. NOT_FOUND if it
  // is not served.
  absl::StatusOr<std::shared_ptr<const ModelConfig>> FindConfig(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // All that there are; a model's replicas are on those that its configuration chooses.
  const std::vector<Worker*>& workers() const { return workers_; }
  // Results of row independence tests of versions loaded earlier.
  RowTestCache* row_tests() { return row_tests_.get(); }

 private:
  using Gone = std::vector<std::shared_ptr<BatchQueue>>;
  struct Entry {
    std::shared_ptr<const ModelConfig> config;  // null: never served
    std::map<int64_t, std::shared_ptr<BatchQueue>> served;
    std::map<int64_t, std::string> reasons;  // of versions that are not served
    int64_t highest = 0;                     // of all versions it has had
  };

  // The entry of a model of which a version is served.
  absl::StatusOr<const Entry*> FindEntry(absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<BatchQueue> MakeQueue(LoadedVersion version) const;
  // Adds to `entry`, and moves what has to go to `*gone`, which is freed after the lock.
  static void Add(const std::shared_ptr<BatchQueue>& queue, Entry* entry, Gone* gone);
  // The same, and what is later than `queue` goes too.
  static void AddNewest(const std::shared_ptr<BatchQueue>& queue, Entry* entry, Gone* gone);

  const std::vector<Worker*> workers_;
  Metrics* const metrics_;
  const std::unique_ptr<RowTestCache> row_tests_;
  const std::unique_ptr<ExpiryThread> expiries_ = std::make_unique<ExpiryThread>();

  mutable absl::Mutex mu_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
