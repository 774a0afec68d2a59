// How a trainer's weights become a version of a model, and how an older version comes back.
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

// Thread-safe. Blocks: files are loaded and written.
class Publisher {
 public:
  // `models` outlives it. `repository`: the directory of the models' files. `data_dir`: where
  // published versions are kept; empty: in memory alone.
  static absl::StatusOr<std::unique_ptr<Publisher>> Open(ServedModels* models,
                                                         std::string repository,
                                                         std::string data_dir);

  // After `model` has been loaded from the repository, or loaded again: serves what was published
  // last, or rolled back to, before. What cannot be read is logged and passed over.
  void ServeStored(const std::string& model) ABSL_LOCKS_EXCLUDED(mu_);

  // Serves `replicas`, which were made for `config`, as the next version of its model, and returns
  // the number; the same number if the version of this very operation is there already, which then
  // takes nobody's place that was published, or gone back to, since. `files` gives the model's
  // files, as Replica::Files() does. FAILED_PRECONDITION if the model has been loaded with other
  // inputs or outputs since, UNAVAILABLE if that happens meanwhile.
  absl::StatusOr<int64_t> Publish(
      const ModelConfig& config, ReplicaSet replicas, const VersionOrigin& origin,
      const std::function<absl::StatusOr<std::vector<NewFile>>()>& files) ABSL_LOCKS_EXCLUDED(mu_);

  // Has `model` serve `version` again. Returns the version that was served before. NOT_FOUND,
  // listing what there is, if there is no such version; UNAVAILABLE if the model is loaded again
  // meanwhile.
  absl::StatusOr<int64_t> Rollback(const std::string& model, int64_t version)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Publisher(ServedModels* models, std::string repository, std::string data_dir)
      : models_(models), repository_(std::move(repository)), data_dir_(std::move(data_dir)) {}

  // A version that can be loaded.
  struct Source {
    int64_t version = 0;
    std::string path;     // of the model's file in the repository; empty: there is none
    bool stored = false;  // in the data directory, which is what counts then
  };
  absl::StatusOr<std::vector<Source>> Sources(const std::string& model) const;
  absl::Status ServeStoredModel(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Warns of files in the repository that are served no more, whose version was published.
  void TellHidden(const std::string& model, const std::vector<Source>& sources) const;
  absl::Status ServeSource(const std::string& model, const Source& source);
  absl::StatusOr<int64_t> StoredAs(const std::string& model, const VersionOrigin& origin) const;
  // 0: none is in the data directory.
  static int64_t NewestStored(const std::vector<Source>& sources);
  // Which version a model is to serve although it is not its newest; 0: none.
  int64_t ReadPinned(const std::string& model, const std::vector<Source>& sources) const;
  absl::Status WritePinned(const std::string& model, int64_t version,
                           const std::vector<Source>& sources) const;

  ServedModels* const models_;
  const std::string repository_;
  const std::string data_dir_;
  std::unique_ptr<VersionStore> store_;  // null: no data directory

  // Held while a version takes the place of another, so that no number is given twice.
  absl::Mutex mu_;
};

}  // namespace braid
