// From a model repository to models that are served, and back.
#pragma once

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

// Used by one thread at a time, which it blocks, but not the workers. A model that is loaded again
// is served all the while: its new versions take the place of the old ones when all of them are
// ready, and if one fails the old ones stay.
class ModelLoader {
 public:
  struct Options {
    std::string directory;
    ConfigReader read_config;
    ConfigOverride read_override;
    // A model has been loaded, or loaded again: what else is to be served of it.
    std::function<void(const std::string& model)> loaded = nullptr;
    // A model has become ready, or is not any more.
    std::function<void(const std::string& model, bool ready)> changed = nullptr;
    // Whether a model's file or its configuration may be used: asked before it is read.
    std::function<absl::Status(const std::string& path)> check_file = nullptr;
  };

  // `models` outlives it.
  ModelLoader(Options options, ServedModels* models);

  // Loads every model. One that fails is listed with the reason, logged, and stops no other.
  // NOT_FOUND if the directory cannot be read.
  absl::Status LoadAll();
  // Lists every model, and loads those that `names` names ('*': all). NOT_FOUND if one is no folder
  // of the repository, else as LoadAll().
  absl::Status LoadNamed(const std::vector<std::string>& names);

  // Loads `name`, again if it is served, with the configuration `config` if that is given.
  // NOT_FOUND if there is no such model, or the reason why it is not loaded.
  absl::Status Load(const std::string& name, const std::optional<std::string>& config);
  // Serves `name` no more; what waits is answered. NOT_FOUND if there is no such model.
  absl::Status Unload(const std::string& name);
  // Loads what is new or has changed since it was loaded, unloads what is gone. What fails is tried
  // again when it changes.
  void Poll();

 private:
  // `found` is looked at again, for others may have been loaded since.
  absl::Status LoadEntry(const RepositoryEntry& found, const std::optional<std::string>& config);
  // Loads `entry` as it is in the end, and serves it. UNAVAILABLE if its files change all the time.
  absl::Status LoadUnchanged(RepositoryEntry* entry, const std::optional<std::string>& config);
  absl::StatusOr<std::vector<LoadedVersion>> LoadVersions(
      const RepositoryEntry& entry, const std::optional<std::string>& override_text);
  absl::Status LoadEntries(const std::vector<RepositoryEntry>& entries);
  void Changed(const std::string& model) const;
  absl::Status CheckFile(const std::string& path) const;

  const Options options_;
  ServedModels* const models_;
  // What ModelFingerprint() said of the models when they were loaded, or could not be.
  std::map<std::string, std::string> files_;
};

}  // namespace braid
