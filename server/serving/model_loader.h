// Loads models from a repository into ServedModels, and unloads them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/models/model_config.h"
#include "server/models/repository.h"
#include "server/serving/served_models.h"

namespace braid {

// Thread-compatible; owned by ModelControl. Blocks its caller, but not the workers. A model stays
// served while it is reloaded: the new versions replace the old ones when all of them are ready. If
// one fails, the old ones stay.
class ModelLoader {
 public:
  struct Options {
    std::string directory;
    ConfigReader read_config;
    ConfigOverride read_override;
    // Called after `versions` of a model are loaded or reloaded, to add published versions.
    std::function<void(const std::string& model, const std::vector<int64_t>& versions)> loaded =
        nullptr;
    // Called when a model becomes ready or stops being ready.
    std::function<void(const std::string& model, bool ready)> changed = nullptr;
    // Called before a model file or configuration is read. An error rejects it.
    std::function<absl::Status(const std::string& path)> check_file = nullptr;
    // Loads a version that is not in the repository, for a model without a version folder that
    // loads. config: of the model, if there is one. An error if there is no such version.
    std::function<absl::StatusOr<LoadedVersion>(const std::string& model,
                                                const std::optional<ModelConfig>& config)>
        load_stored = nullptr;
    // Called before the directory is read, to bring it up to date.
    std::function<absl::Status()> update = nullptr;
  };

  // `models` outlives it.
  ModelLoader(Options options, ServedModels* models);

  // Loads all models. A failure is listed and logged, and does not stop the others; older versions
  // are served then. NOT_FOUND if the directory cannot be read; the error of the update.
  absl::Status LoadAll();
  // Lists all models, and loads those in `names` ("*": all) like LoadAll(). NOT_FOUND if a name is
  // not in the repository.
  absl::Status LoadNamed(const std::vector<std::string>& names);

  // Loads or reloads `name`. config: JSON configuration that overrides config.pbtxt. NOT_FOUND if
  // there is no such model; else the error of the load.
  absl::Status Load(const std::string& name, const std::optional<std::string>& config);
  // Stops serving `name`; its queued requests complete. NOT_FOUND if there is no such model.
  absl::Status Unload(const std::string& name);
  // Loads new and changed models, and unloads removed ones. A model that failed is retried when it
  // changes.
  void Poll();

 private:
  // Rescans `found`, because loading other models took time.
  // or_older: after a failure, serves older versions, if there are any that load.
  absl::Status LoadEntry(const RepositoryEntry& found, const std::optional<std::string>& config,
                         bool or_older = false);
  // Loads `entry`, again if its files change during the load, and serves it. UNAVAILABLE after 5
  // tries. Sets `failed` like LoadVersions().
  absl::Status LoadUnchanged(RepositoryEntry* entry, const std::optional<std::string>& config,
                             int64_t* failed);
  // Loads the versions that the policy selects, or without one in `entry`, a stored version. Sets
  // `failed` to the version that failed to load; 0 if the error concerns the model.
  absl::StatusOr<std::vector<LoadedVersion>> LoadVersions(
      const RepositoryEntry& entry, const std::optional<std::string>& override_text,
      int64_t* failed);
  // Replaces the served versions.
  void Serve(const std::string& name, std::vector<LoadedVersion> versions);
  // Serves the newest versions below `failed` that load, or else a stored version. Records those
  // that fail.
  void ServeOlder(RepositoryEntry entry, int64_t failed);
  // Logs the failure and lists it. failed: see LoadVersions().
  void RecordFailure(const RepositoryEntry& entry, int64_t failed, const absl::Status& why);
  absl::Status LoadEntries(const std::vector<RepositoryEntry>& entries);
  void ReportState(const std::string& model) const;
  absl::Status CheckFile(const std::string& path) const;
  absl::Status UpdateDirectory() const;

  const Options options_;
  ServedModels* const models_;
  // ModelFingerprint() of each model at its last load or failure.
  std::map<std::string, std::string> files_;
};

}  // namespace braid
