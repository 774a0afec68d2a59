// Publishes a trainer's weights as a version of a model, and manages the versions of models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/base/task_thread.h"
#include "server/models/model_config.h"
#include "server/serving/served_models.h"
#include "server/storage/versions/version_choices.h"
#include "server/storage/versions/version_store.h"
#include "server/training/trainer/version_info.h"
#include "server/training/trainer/version_writer.h"

namespace braid {

class BatchQueue;
class ReplicaSet;
struct LoadedVersion;

// Owned by the server. Thread-safe. Methods block while they load and write files; only
// ListVersions() and ListModels() do not wait for a load. The destructor waits until the published
// versions are written.
class Publisher {
 public:
  // `models` outlives the object. `repository`: directory of the models' files. `data_dir`:
  // directory of published versions, pins and labels; empty: in memory only. `check_file`: called
  // before a model file of the repository is read; an error rejects it; nullptr: accepts all.
  static absl::StatusOr<std::unique_ptr<Publisher>> Open(
      ServedModels* models, std::string repository, const std::string& data_dir,
      std::function<absl::Status(const std::string& path)> check_file = nullptr);

  // Loads the first version of `model` that is in the data directory and loads: the pinned one, the
  // newest that the version policy selects, or a labelled one. For a model without a version in the
  // repository. config: of config.pbtxt, if there is one. NOT_FOUND if there is no such version;
  // the error of the last load.
  absl::StatusOr<LoadedVersion> LoadStored(const std::string& model,
                                           const std::optional<ModelConfig>& config)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Serves the pinned or else the newest version, and the labelled ones. Called after versions
  // `loaded` of the model have been loaded or reloaded. Logs and skips versions that cannot be
  // read.
  void ServeStored(const std::string& model, const std::vector<int64_t>& loaded)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Serves `replicas`, made for `config`, as the next version of its model and returns the version.
  // Merges its requests once its rows have been tested, perhaps after the call. Waits for the test
  // of the version before.
  // Ends a pin. Its number is on disk before it serves. With a data directory, a background thread
  // then writes the version, unless another one replaces it first and `must_write` is false.
  // Idempotent: a retry of the same operation returns the same version, and does not replace a
  // version that was published or pinned since. `files`: Replica::Files(). FAILED_PRECONDITION if
  // the model has been reloaded with other inputs or outputs, UNAVAILABLE if it is reloaded during
  // the call. Blocks while many versions wait to be written.
  absl::StatusOr<int64_t> Publish(const ModelConfig& config, ReplicaSet replicas,
                                  const VersionOrigin& origin, std::vector<NewFile> files,
                                  bool must_write) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns whether a crash has undone the publication of a version: its number is reserved for the
  // operation, but its files do not exist and are not being written.
  bool WasLost(const std::string& model, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the state of a version that was published.
  DurabilityState DurabilityOf(const std::string& model, int64_t version) const;
  // Waits until the version is durable, or will not be, and returns its state.
  DurabilityState WaitForDurability(const std::string& model, int64_t version) const;
  // Waits until all versions that trainer `trainer_id` published up to operation `sequence` are
  // durable, or will not be.
  void WaitForTrainer(const std::string& trainer_id, int64_t sequence) const;
  // Waits until all published versions are durable, or will not be.
  void Flush() const;

  // Serves `version` of `model` again and pins it, unless it is the newest. NOT_FOUND, listing the
  // versions, if there is no such version; UNAVAILABLE if the model is reloaded during the call;
  // the error of the load.
  absl::StatusOr<VersionChange> Rollback(const std::string& model, int64_t version)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Same, but pins any version.
  absl::StatusOr<VersionChange> Pin(const std::string& model, int64_t version)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a pin and serves the newest version. Returns the version for requests without a version.
  absl::StatusOr<int64_t> Unpin(const std::string& model) ABSL_LOCKS_EXCLUDED(mu_);
  // Points a label at a version; version 0: removes it. Returns the version that had the label; 0:
  // none. INVALID_ARGUMENT for an invalid label, NOT_FOUND for an unknown version or, if it is to
  // be removed, label.
  absl::StatusOr<int64_t> SetLabel(const std::string& model, const std::string& label,
                                   int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Deletes a version of the data directory. NOT_FOUND for an unknown version; FAILED_PRECONDITION
  // for the version that requests without a version get, a pinned or labelled one, and one of the
  // repository.
  absl::Status Delete(const std::string& model, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts an upload of a version of `model`. NOT_FOUND if the model is not served,
  // FAILED_PRECONDITION without a data directory.
  absl::StatusOr<std::unique_ptr<VersionUpload>> StartUpload(const std::string& model) const;
  // Stores the files as the next version of `model`, loads it, and serves it unless another version
  // is pinned. On error, the version does not exist. INVALID_ARGUMENT if files are missing; the
  // error of the load; FAILED_PRECONDITION if the version policy excludes the version.
  absl::StatusOr<UploadedVersion> Upload(const std::string& model, VersionUpload* upload)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Assigns the next version number of a model, which need not exist yet.
  absl::StatusOr<int64_t> Reserve(const std::string& model) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the queue of a version for a job or a new trainer: of the served one, or else of one
  // that is loaded for the caller alone. version 0: the current one. NOT_FOUND for an unknown
  // version; the error of the load. Blocks, also until the version is tested.
  absl::StatusOr<std::shared_ptr<BatchQueue>> FindOrLoad(const std::string& model, int64_t version);
  // Returns the configuration of a served model. NOT_FOUND if `version`, other than 0, does not
  // exist.
  absl::StatusOr<ModelConfig> FindConfig(const std::string& model, int64_t version) const;

  // Returns the versions of a model, by number. NOT_FOUND for an unknown model.
  absl::StatusOr<std::vector<VersionInfo>> ListVersions(const std::string& model) const;
  // Returns the names of all models with versions, sorted.
  absl::StatusOr<std::vector<std::string>> ListModels() const;

 private:
  Publisher(ServedModels* models, std::string repository,
            std::function<absl::Status(const std::string& path)> check_file)
      : models_(models), repository_(std::move(repository)), check_file_(std::move(check_file)) {}

  // Test of a published version's rows.
  struct RowTestRun {
    // Tests the version and sets the rest.
    void Run(const BatchQueue& version);

    absl::Status status;
    ModelConfig config;  // of the version from now on
    absl::Notification done;
  };
  // Serves a version and tests its rows, if that is needed. Returns errors of a short test, and of
  // ServedModels::ServeVersion().
  absl::Status Serve(LoadedVersion published, const std::shared_ptr<const ModelConfig>& current,
                     Routing routing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Applies the result of a test, if `untested` is served.
  static void Settle(ServedModels* models, const std::shared_ptr<BatchQueue>& untested,
                     const RowTestRun& test);
  // Waits until the rows of a served version are tested. version 0: the current one.
  void WaitForRowTest(const std::string& model, int64_t version);

  // A version that can be loaded.
  struct Source {
    int64_t version = 0;
    std::string path;     // of the model's file in the repository; empty: none
    bool stored = false;  // in the data directory, or about to be; takes precedence
  };
  using Sources = std::vector<Source>;

  // Returns the versions of a model by number.
  absl::StatusOr<Sources> FindSources(const std::string& model) const;
  // Returns the source of a version, or nullptr.
  static const Source* Find(const Sources& sources, int64_t version);
  // Versions to serve after a load.
  struct Plan {
    int64_t current = 0;
    std::vector<int64_t> wanted;  // the current one first
    std::set<int64_t> loaded;     // need no load
  };
  static Plan MakePlan(const Sources& sources, const VersionPolicy& policy,
                       const VersionChoices& choices, int64_t newest,
                       const std::vector<int64_t>& loaded);
  // Loads a version unless it is loaded, and applies `routing`.
  absl::Status ServePlanned(const std::string& model, const Source& source, const Routing& routing,
                            Plan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ServeStoredModel(const std::string& model, const std::vector<int64_t>& loaded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Warns of files in the repository that a version of the same number hides.
  void WarnHidden(const std::string& model, const Sources& sources) const;
  // Returns why a file in the repository is not served: a version of its number hides it.
  std::string WhyHidden(const std::string& model, const Source& source,
                        const Sources& sources) const;
  // declared: configuration without what was derived from a version; nullopt: derives all of it.
  absl::StatusOr<LoadedVersion> Load(const std::string& model, const Source& source,
                                     const std::optional<ModelConfig>& declared) const;
  absl::StatusOr<VersionChange> PinVersion(const std::string& model, int64_t version,
                                           bool pin_newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Loads `version` unless it is served, then stores `choices` and applies them. current: version
  // for requests without a version.
  absl::Status Apply(const std::string& model, int64_t version, int64_t current,
                     const Sources& sources, const VersionChoices& choices)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the version that the operation of `origin` has published, or 0.
  absl::StatusOr<int64_t> FindPublished(const std::string& model, const VersionOrigin& origin,
                                        const Sources& sources,
                                        const VersionChoices& choices) const;
  // Returns the origin of a version that is stored or waits to be written.
  absl::StatusOr<VersionOrigin> ReadOrigin(const std::string& model, int64_t version) const;
  // Reserves `version` for the operation of `origin`, on disk.
  absl::Status ReserveFor(const VersionOrigin& origin, const std::string& model, int64_t version,
                          const Sources& sources) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the newest version in the data directory, or about to be; 0: none.
  static int64_t NewestStored(const Sources& sources);
  // Returns the newest published version whose writing failed; 0: none.
  int64_t NewestFailed(const std::string& model) const;
  // Returns the newest version that the version policy selects.
  absl::StatusOr<int64_t> Newest(const std::string& model, const Sources& sources) const;
  // Returns the next unused version number.
  int64_t NextNumber(const std::string& model, const Sources& sources) const;
  // Returns NextNumber() for a new version. FAILED_PRECONDITION if the version policy excludes it.
  absl::StatusOr<int64_t> TakeNumber(const std::string& model, const Sources& sources)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the choices of the users, also about versions whose files are gone.
  VersionChoices ReadChoices(const std::string& model, const Sources& sources) const;
  // Returns `choices` without a pin of a version that has no files and is not served.
  VersionChoices InForce(const std::string& model, const Sources& sources,
                         VersionChoices choices) const;
  VersionInfo InfoOf(const std::string& model, const Source& source) const;
  // Describes a version without files.
  static VersionInfo InfoOf(int64_t version, const VersionWriter::Unwritten& unwritten);
  // Adds what a version's state in this server says to `info`.
  void AddState(const ModelState& state, const Sources& sources, VersionInfo* info) const;

  ServedModels* const models_;
  const std::string repository_;
  const std::function<absl::Status(const std::string& path)> check_file_;
  std::unique_ptr<VersionStore> store_;  // nullptr: no data directory
  std::unique_ptr<VersionChoicesFile> choices_;

  // Held while versions and choices change, so that version numbers are unique.
  absl::Mutex mu_;

  // Last members: joined first.
  TaskThread row_tests_{"row-tests"};
  std::unique_ptr<VersionWriter> writer_;  // nullptr: no data directory
};

}  // namespace braid
