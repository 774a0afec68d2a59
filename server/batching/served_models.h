// The models that are served, by name, and how a version takes the place of another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/batching/request_queue.h"
#include "server/telemetry/metrics.h"

namespace braid {

class BatchQueue;
class Model;
class Replica;
class Worker;

// A model as RepositoryIndex lists it.
struct ModelState {
  std::string name;
  int64_t version = 0;
  bool ready = false;
  // Why it is not ready.
  std::string reason;
};

// Thread-safe.
class ServedModels {
 public:
  // The workers and `metrics` outlive it. Every model gets a replica on every worker.
  ServedModels(std::vector<Worker*> workers, Metrics* metrics);
  ~ServedModels();

  // Serves `replicas`, one a worker, as `version` of the model that `config` names, in place of the
  // version before: requests that were queued for that one still run on it. `origin`: where the
  // version comes from, for its configuration.
  void Serve(std::shared_ptr<const Model> model, int64_t version,
             std::vector<std::unique_ptr<Replica>> replicas,
             std::map<std::string, std::string> origin = {}) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a model that is served. NOT_FOUND if `name` is none.
  absl::Status ServeVersion(absl::string_view name, int64_t version,
                            std::vector<std::unique_ptr<Replica>> replicas,
                            std::map<std::string, std::string> origin) ABSL_LOCKS_EXCLUDED(mu_);
  // The number after the highest that `name` has had. NOT_FOUND if it is not served.
  absl::StatusOr<int64_t> NextVersion(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // `version` of `name` is taken, though not served. NOT_FOUND if `name` is not served.
  absl::Status ReserveVersion(absl::string_view name, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Lists a model that could not be loaded.
  void ServeNot(std::string name, int64_t version, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The queue of a model; `version` 0: the one that is served. NOT_FOUND, saying what there is.
  absl::StatusOr<std::shared_ptr<RequestQueue>> Find(absl::string_view name, int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, with the replicas behind it.
  absl::StatusOr<std::shared_ptr<BatchQueue>> FindReplicas(absl::string_view name,
                                                           int64_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // All models, by name.
  std::vector<ModelState> List() const ABSL_LOCKS_EXCLUDED(mu_);

  // What `name` was loaded from. NOT_FOUND if it is not served.
  absl::StatusOr<std::shared_ptr<const Model>> FindModel(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<Worker*>& workers() const { return workers_; }

 private:
  struct Entry {
    std::shared_ptr<const Model> model;
    std::shared_ptr<BatchQueue> queue;  // null: not served
    int64_t version = 0;
    int64_t highest = 0;  // of all versions it has had
    std::string reason;
  };

  absl::StatusOr<const Entry*> FindEntry(absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<Worker*> workers_;
  Metrics* const metrics_;

  mutable absl::Mutex mu_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
