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
// Attempts to load a model whose files change while they are read.
constexpr int kMaxTries = 5;

// Describes inputs or outputs: "x FP32[B,?]".
std::string Describe(const std::vector<TensorSpec>& specs, bool batched) {
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
            Describe(config.inputs, config.batched()), Describe(config.outputs, config.batched()),
            config.merges_requests() ? absl::StrCat("batches of up to ", config.max_batch_size)
                                     : "each request alone",
            version.replicas.size());
}

// Rejects names that the health service uses for the server itself.
absl::Status CheckName(const std::string& name) {
  if (IsReservedHealthName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserved model name '", name,
                     "': the health service uses it for the server itself (rename the folder)"));
  }
  return absl::OkStatus();
}

// Returns the versions that the policy serves, ascending.
absl::StatusOr<std::vector<RepositoryEntry::Version>> Choose(const RepositoryEntry& entry,
                                                             const VersionPolicy& policy) {
  std::vector<RepositoryEntry::Version> chosen = entry.versions;
  if (chosen.empty()) {
    return absl::NotFoundError(
        "no version folder (expected <version>/model.pt2 or model.pt, with a version number from "
        "1)");
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
    return absl::NotFoundError("version_policy selects no existing version folder");
  }
  return chosen;
}

}  // namespace

ModelLoader::ModelLoader(Options options, ServedModels* models)
    : options_(std::move(options)), models_(models) {}

absl::StatusOr<std::vector<LoadedVersion>> ModelLoader::LoadVersions(
    const RepositoryEntry& entry, const std::optional<std::string>& override_text,
    int64_t* failed) {
  *failed = 0;
  BRAID_RETURN_IF_ERROR(CheckName(entry.name));
  std::optional<ModelConfig> config;
  if (override_text) {
    BRAID_ASSIGN_OR_RETURN(config,
                           options_.read_override(*override_text, entry.folder, entry.name));
  } else if (!entry.config_path.empty()) {
    BRAID_RETURN_IF_ERROR(CheckFile(entry.config_path));
    BRAID_ASSIGN_OR_RETURN(config, options_.read_config(entry.config_path, entry.name));
  }
  const absl::StatusOr<std::vector<RepositoryEntry::Version>> versions =
      Choose(entry, config ? config->version_policy : VersionPolicy());
  std::vector<LoadedVersion> loaded;
  if (!versions.ok()) {
    if (options_.load_stored == nullptr) {
      return versions.status();
    }
    absl::StatusOr<LoadedVersion> stored = options_.load_stored(entry.name, config);
    if (!stored.ok()) {
      return absl::IsNotFound(stored.status()) ? versions.status() : stored.status();
    }
    loaded.push_back(*std::move(stored));
    return loaded;
  }
  for (const RepositoryEntry::Version& version : *versions) {
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
                      OnRowDependence::kReject, models_->row_tests()));
      LogLoaded(one, absl::Now() - start);
      loaded.push_back(std::move(one));
      return absl::OkStatus();
    };
    *failed = version.version;
    BRAID_RETURN_IF_ERROR(load());
  }
  *failed = 0;
  return loaded;
}

absl::Status ModelLoader::LoadUnchanged(RepositoryEntry* entry,
                                        const std::optional<std::string>& config, int64_t* failed) {
  const std::string name = entry->name;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    // Taken before the scan, so that later changes are left for the next poll.
    const std::string before = files_[name] = ModelFingerprint(*entry);
    BRAID_ASSIGN_OR_RETURN(*entry, ScanModel(options_.directory, name));
    absl::StatusOr<std::vector<LoadedVersion>> loaded = LoadVersions(*entry, config, failed);
    // Checks and each replica read the files separately.
    BRAID_ASSIGN_OR_RETURN(*entry, ScanModel(options_.directory, name));
    if (ModelFingerprint(*entry) != before) {
      continue;
    }
    BRAID_RETURN_IF_ERROR(loaded.status());
    Serve(name, *std::move(loaded));
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("the files changed during each of ", kMaxTries,
                                             " attempts to load them (expected stable files)"));
}

void ModelLoader::Serve(const std::string& name, std::vector<LoadedVersion> versions) {
  std::vector<int64_t> numbers;
  for (const LoadedVersion& version : versions) {
    numbers.push_back(version.version);
  }
  models_->Replace(std::move(versions));
  if (options_.loaded != nullptr) {
    options_.loaded(name, numbers);
  }
}

void ModelLoader::ServeOlder(RepositoryEntry entry, int64_t failed) {
  std::vector<std::pair<int64_t, absl::Status>> failures;
  while (failed != 0) {
    std::erase_if(entry.versions, [failed](const RepositoryEntry::Version& version) {
      return version.version >= failed;
    });
    absl::StatusOr<std::vector<LoadedVersion>> loaded = LoadVersions(entry, std::nullopt, &failed);
    if (loaded.ok()) {
      Serve(entry.name, *std::move(loaded));
    } else if (failed != 0) {
      failures.emplace_back(failed, loaded.status());
    }
  }
  for (const auto& [version, why] : failures) {
    RecordFailure(entry, version, why);
  }
}

absl::Status ModelLoader::LoadEntry(const RepositoryEntry& found,
                                    const std::optional<std::string>& config, bool or_older) {
  const std::string& name = found.name;
  RepositoryEntry entry = found;
  int64_t failed = 0;
  absl::Status status = LoadUnchanged(&entry, config, &failed);
  if (!status.ok()) {
    if (or_older) {
      ServeOlder(entry, failed);
    }
    RecordFailure(entry, failed, status);
  }
  ReportState(name);
  return status;
}

void ModelLoader::RecordFailure(const RepositoryEntry& entry, int64_t failed,
                                const absl::Status& why) {
  const std::string version = failed == 0 ? "" : absl::StrCat(" version ", failed);
  const std::string message(why.message());
  const absl::StatusOr<std::vector<int64_t>> serving = models_->Versions(entry.name);
  if (serving.ok()) {
    Log(LogModule::kModels)
        .error("model '{}'{}: failed to load; still serving version{} {}: {}", entry.name, version,
               serving->size() == 1 ? "" : "s", absl::StrJoin(*serving, ", "), message);
  } else {
    Log(LogModule::kModels).error("model '{}'{}: failed to load: {}", entry.name, version, message);
  }
  const bool newest = failed == 0 && !serving.ok() && !entry.versions.empty();
  models_->MarkFailed(entry.name, newest ? entry.versions.back().version : failed, why);
}

absl::Status ModelLoader::CheckFile(const std::string& path) const {
  return options_.check_file == nullptr ? absl::OkStatus() : options_.check_file(path);
}

void ModelLoader::ReportState(const std::string& model) const {
  if (options_.changed != nullptr) {
    options_.changed(model, models_->Find(model, 0).ok());
  }
}

absl::Status ModelLoader::LoadEntries(const std::vector<RepositoryEntry>& entries) {
  for (const RepositoryEntry& entry : entries) {
    LoadEntry(entry, std::nullopt, /*or_older=*/true)
        .IgnoreError();  // it is listed with the reason
  }
  return absl::OkStatus();
}

absl::Status ModelLoader::UpdateDirectory() const {
  return options_.update == nullptr ? absl::OkStatus() : options_.update();
}

absl::Status ModelLoader::LoadAll() {
  BRAID_RETURN_IF_ERROR(UpdateDirectory());
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry> entries,
                         ScanRepository(options_.directory));
  if (entries.empty()) {
    Log(LogModule::kModels).warn("model repository '{}' is empty", options_.directory);
  }
  return LoadEntries(entries);
}

absl::Status ModelLoader::LoadNamed(const std::vector<std::string>& names) {
  BRAID_RETURN_IF_ERROR(UpdateDirectory());
  BRAID_ASSIGN_OR_RETURN(const std::vector<RepositoryEntry> entries,
                         ScanRepository(options_.directory));
  for (const RepositoryEntry& entry : entries) {
    models_->Register(entry.name);
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
  BRAID_RETURN_IF_ERROR(UpdateDirectory());
  BRAID_ASSIGN_OR_RETURN(const RepositoryEntry entry, ScanModel(options_.directory, name));
  return LoadEntry(entry, config);
}

absl::Status ModelLoader::Unload(const std::string& name) {
  BRAID_RETURN_IF_ERROR(models_->Remove(name, "unloaded"));
  Log(LogModule::kModels).info("model '{}': unloaded", name);
  ReportState(name);
  return absl::OkStatus();
}

void ModelLoader::Poll() {
  if (const absl::Status updated = UpdateDirectory(); !updated.ok()) {
    Log(LogModule::kModels)
        .error("cannot update the model repository: {}", std::string(updated.message()));
    return;
  }
  const absl::StatusOr<std::vector<RepositoryEntry>> entries = ScanRepository(options_.directory);
  if (!entries.ok()) {
    // The file system may be unavailable for a while. Keeps the served models.
    Log(LogModule::kModels)
        .error("cannot read the model repository: {}", std::string(entries.status().message()));
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
    Log(LogModule::kModels).info("model '{}': removed from the repository", known->first);
    models_->Forget(known->first);
    ReportState(known->first);
    known = files_.erase(known);
  }
}

}  // namespace braid
