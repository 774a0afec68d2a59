#include "server/serving/model_loader.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/batch_queue.h"
#include "server/serving/load_model.h"
#include "server/telemetry/health.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr char kAll[] = "*";
// Of a model whose files change while they are read.
constexpr int kTries = 5;

std::string Names(const std::vector<TensorSpec>& specs, bool batched) {
  return absl::StrJoin(specs, ", ", [batched](std::string* out, const TensorSpec& spec) {
    std::vector<std::string> dims;
    if (batched && !spec.broadcast && !spec.scalar) {
      dims.push_back("B");
    }
    for (const int64_t dim : spec.dims) {
      dims.push_back(dim < 0 ? "?" : absl::StrCat(dim));
    }
    absl::StrAppend(out, spec.name, " ", DataTypeName(spec.type), "[", absl::StrJoin(dims, ","),
                    "]");
  });
}

void LogLoaded(const LoadedVersion& version, absl::Duration time) {
  const ModelConfig& config = version.config;
  Log(LogModule::kModels)
      .info("model '{}' version {} ready in {}: ({}) -> ({}), {}, {} replicas", config.name,
            version.version, absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1))),
            Names(config.inputs, config.batched()), Names(config.outputs, config.batched()),
            config.merges_requests() ? absl::StrCat("batches of up to ", config.max_batch_size)
                                     : "each request alone",
            version.replicas.size());
}

// A model whose name is taken would be served without anybody learning of its health.
absl::Status CheckName(const std::string& name) {
  if (IsServersName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the health service says by the name '", name,
                     "' how the server itself is, so it can say nothing of a model of that name; "
                     "expected a folder that is called otherwise"));
  }
  return absl::OkStatus();
}

// Which versions the policy serves, ascending.
absl::StatusOr<std::vector<RepositoryEntry::Version>> Choose(const RepositoryEntry& entry,
                                                             const VersionPolicy& policy) {
  std::vector<RepositoryEntry::Version> chosen = entry.versions;
  if (chosen.empty()) {
    return absl::NotFoundError(
        "there is no version folder: expected <version>/model.pt, the "
        "version a number from 1");
  }
  if (const auto* latest = std::get_if<LatestVersions>(&policy)) {
    const auto count = static_cast<int64_t>(chosen.size());
    chosen.erase(chosen.begin(), chosen.begin() + std::max<int64_t>(0, count - latest->count));
  } else if (const auto* specific = std::get_if<SpecificVersions>(&policy)) {
    std::erase_if(chosen, [&](const RepositoryEntry::Version& version) {
      return std::find(specific->versions.begin(), specific->versions.end(), version.version) ==
             specific->versions.end();
    });
  }
  if (chosen.empty()) {
    return absl::NotFoundError("there is no folder of a version that version_policy names");
  }
  return chosen;
}

}  // namespace

ModelLoader::ModelLoader(Options options, ServedModels* models)
    : options_(std::move(options)), models_(models) {}

absl::StatusOr<std::vector<LoadedVersion>> ModelLoader::LoadVersions(
    const RepositoryEntry& entry, const std::optional<std::string>& override_text) {
  BRAID_RETURN_IF_ERROR(CheckName(entry.name));
  std::optional<ModelConfig> config;
  if (override_text) {
    BRAID_ASSIGN_OR_RETURN(config,
                           options_.read_override(*override_text, entry.folder, entry.name));
  } else if (!entry.config_path.empty()) {
    BRAID_RETURN_IF_ERROR(CheckFile(entry.config_path));
    BRAID_ASSIGN_OR_RETURN(config, options_.read_config(entry.config_path, entry.name));
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry::Version> versions,
                         Choose(entry, config ? config->version_policy : VersionPolicy()));
  std::vector<LoadedVersion> loaded;
  for (const RepositoryEntry::Version& version : versions) {
    const absl::Time start = absl::Now();
    const auto load = [&]() -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(const std::string path,
                             FindModelFile(version, config ? config->model_filename : ""));
      for (const std::string& file : ModelFiles(path)) {
        BRAID_RETURN_IF_ERROR(CheckFile(file));
      }
      Log(LogModule::kModels).info("model '{}' version {}: loading", entry.name, version.version);
      BRAID_ASSIGN_OR_RETURN(
          LoadedVersion one,
          LoadVersion({path, entry.folder, entry.name, version.version}, config, models_->workers(),
                      OnRowDependence::kRefuse, models_->row_tests()));
      LogLoaded(one, absl::Now() - start);
      loaded.push_back(std::move(one));
      return absl::OkStatus();
    };
    if (const absl::Status status = load(); !status.ok()) {
      models_->ServeNot(entry.name, version.version, status);
      return status;
    }
  }
  return loaded;
}

absl::Status ModelLoader::LoadUnchanged(RepositoryEntry* entry,
                                        const std::optional<std::string>& config) {
  const std::string name = entry->name;
  for (int tries = 0; tries < kTries; ++tries) {
    // Before the look: what comes after it is another state of the folder, for the next poll.
    const std::string before = files_[name] = ModelFingerprint(*entry);
    BRAID_ASSIGN_OR_RETURN(*entry, ScanModel(options_.directory, name));
    absl::StatusOr<std::vector<LoadedVersion>> loaded = LoadVersions(*entry, config);
    // Replicas are read from the files one by one, and checks read them before.
    BRAID_ASSIGN_OR_RETURN(*entry, ScanModel(options_.directory, name));
    if (ModelFingerprint(*entry) != before) {
      continue;
    }
    BRAID_RETURN_IF_ERROR(loaded.status());
    models_->Replace(*std::move(loaded));
    if (options_.loaded != nullptr) {
      options_.loaded(name);
    }
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("its files have changed each of ", kTries,
                   " times while they were read; expected them to stay as they are"));
}

absl::Status ModelLoader::LoadEntry(const RepositoryEntry& found,
                                    const std::optional<std::string>& config) {
  const std::string& name = found.name;
  RepositoryEntry entry = found;
  absl::Status status = LoadUnchanged(&entry, config);
  if (!status.ok()) {
    Log(LogModule::kModels)
        .error("model '{}' is not loaded: {}", name, std::string(status.message()));
    if (!models_->Find(name, 0).ok()) {
      models_->ServeNot(name, entry.versions.empty() ? 0 : entry.versions.back().version, status);
    }
  }
  Changed(name);
  return status;
}

absl::Status ModelLoader::CheckFile(const std::string& path) const {
  return options_.check_file == nullptr ? absl::OkStatus() : options_.check_file(path);
}

void ModelLoader::Changed(const std::string& model) const {
  if (options_.changed != nullptr) {
    options_.changed(model, models_->Find(model, 0).ok());
  }
}

absl::Status ModelLoader::LoadEntries(const std::vector<RepositoryEntry>& entries) {
  for (const RepositoryEntry& entry : entries) {
    LoadEntry(entry, std::nullopt).IgnoreError();  // it is listed with the reason
  }
  return absl::OkStatus();
}

absl::Status ModelLoader::LoadAll() {
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry> entries,
                         ScanRepository(options_.directory));
  if (entries.empty()) {
    Log(LogModule::kModels).warn("the model repository '{}' is empty", options_.directory);
  }
  return LoadEntries(entries);
}

absl::Status ModelLoader::LoadNamed(const std::vector<std::string>& names) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry> entries,
                         ScanRepository(options_.directory));
  for (const RepositoryEntry& entry : entries) {
    models_->Mention(entry.name);
  }
  if (std::find(names.begin(), names.end(), kAll) != names.end()) {
    return LoadEntries(entries);
  }
  std::vector<RepositoryEntry> named;
  for (const std::string& name : names) {
    BRAID_ASSIGN_OR_RETURN(RepositoryEntry entry, ScanModel(options_.directory, name));
    named.push_back(std::move(entry));
  }
  return LoadEntries(named);
}

absl::Status ModelLoader::Load(const std::string& name, const std::optional<std::string>& config) {
  BRAID_ASSIGN_OR_RETURN(const RepositoryEntry entry, ScanModel(options_.directory, name));
  return LoadEntry(entry, config);
}

absl::Status ModelLoader::Unload(const std::string& name) {
  BRAID_RETURN_IF_ERROR(models_->Remove(name, "unloaded"));
  Log(LogModule::kModels).info("model '{}' is unloaded", name);
  Changed(name);
  return absl::OkStatus();
}

void ModelLoader::Poll() {
  const absl::StatusOr<std::vector<RepositoryEntry>> entries = ScanRepository(options_.directory);
  if (!entries.ok()) {
    // As when a file system is gone for a while: what is served stays.
    Log(LogModule::kModels)
        .error("the model repository cannot be read: {}", std::string(entries.status().message()));
    return;
  }
  std::set<std::string> names;
  for (const RepositoryEntry& entry : *entries) {
    names.insert(entry.name);
    const auto known = files_.find(entry.name);
    if (known == files_.end() || known->second != ModelFingerprint(entry)) {
      LoadEntry(entry, std::nullopt).IgnoreError();  // it is listed with the reason
    }
  }
  for (auto known = files_.begin(); known != files_.end();) {
    if (names.count(known->first) > 0) {
      ++known;
      continue;
    }
    Log(LogModule::kModels).info("model '{}' is gone from the repository", known->first);
    models_->Forget(known->first);
    Changed(known->first);
    known = files_.erase(known);
  }
}

}  // namespace braid
