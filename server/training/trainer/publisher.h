// Publishes a trainer's weights as a version of a model, and rolls models back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/parallel/replica_set.h"
#include "server/serving/served_models.h"
#include "server/storage/version_store.h"

namespace braid {

// Owned by the server. Thread-safe. Methods block while they load and write files.
class Publisher {
 public:
  // `models` outlives the object. `repository`: directory of the models' files. `data_dir`:
  // directory of published versions; empty: in memory only.
  static absl::StatusOr<std::unique_ptr<Publisher>> Open(ServedModels* models,
                                                         std::string repository,
                                                         std::string data_dir);

  // Serves the version that was published last, or rolled back to. Called after `model` has been
  // loaded or reloaded from the repository. Logs and skips versions that cannot be read.
  void ServeStored(const std::string& model) ABSL_LOCKS_EXCLUDED(mu_);

  // Serves `replicas`, made for `config`, as the next version of its model and returns the version.
  // Idempotent: a retry of the same operation returns the version that exists, and does not replace
  // a version that was published or rolled back to since. `files`: returns the model's files, like
  // Replica::Files(). FAILED_PRECONDITION if the model has been reloaded with other inputs or
  // outputs, UNAVAILABLE if it is reloaded during the call.
  absl::StatusOr<int64_t> Publish(
      const ModelConfig& config, ReplicaSet replicas, const VersionOrigin& origin,
      const std::function<absl::StatusOr<std::vector<NewFile>>()>& files) ABSL_LOCKS_EXCLUDED(mu_);

  // Serves `version` of `model` again. Returns the version that was served before. NOT_FOUND,
  // listing the versions, if there is no such version; UNAVAILABLE if the model is reloaded during
  // the call.
  absl::StatusOr<int64_t> Rollback(const std::string& model, int64_t version)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Publisher(ServedModels* models, std::string repository, std::string data_dir)
      : models_(models), repository_(std::move(repository)), data_dir_(std::move(data_dir)) {}

  // A version that can be loaded.
  struct Source {
    int64_t version = 0;
    std::string path;     // of the model's file in the repository; empty: none
    bool stored = false;  // in the data directory, which takes precedence
  };
  absl::StatusOr<std::vector<Source>> Sources(const std::string& model) const;
  absl::Status ServeStoredModel(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Warns of files in the repository that a published version of the same number hides.
  void WarnHidden(const std::string& model, const std::vector<Source>& sources) const;
  absl::Status ServeSource(const std::string& model, const Source& source);
  absl::StatusOr<int64_t> StoredAs(const std::string& model, const VersionOrigin& origin) const;
  // Returns the newest version in the data directory; 0: none.
  static int64_t NewestStored(const std::vector<Source>& sources);
  // Returns the version that a model was rolled back to; 0: it serves the newest.
  int64_t ReadPinned(const std::string& model, const std::vector<Source>& sources) const;
  absl::Status WritePinned(const std::string& model, int64_t version,
                           const std::vector<Source>& sources) const;

  ServedModels* const models_;
  const std::string repository_;
  const std::string data_dir_;
  std::unique_ptr<VersionStore> store_;  // nullptr: no data directory

  // Held while a version replaces another, so that version numbers are unique.
  absl::Mutex mu_;
};

}  // namespace braid
