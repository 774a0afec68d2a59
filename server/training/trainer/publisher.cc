#include "server/training/trainer/publisher.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/base/atomic_file.h"
#include "server/base/status.h"
#include "server/batching/batch_queue.h"
#include "server/models/config/version_config.h"
#include "server/models/repository.h"
#include "server/serving/load_model.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using nlohmann::json;

// For each model that was rolled back: the version to serve, and the newest version of the data
// directory at that time.
constexpr char kPinned[] = "serving.json";
constexpr char kVersion[] = "version";
constexpr char kNewest[] = "newest";

std::map<std::string, std::string> Describe(const VersionOrigin& origin) {
  return {{"trainer", origin.trainer},
          {"step", absl::StrCat(origin.step)},
          {"sequence", absl::StrCat(origin.sequence)},
          {"checkpoint", origin.checkpoint},
          {"created", absl::FormatTime(origin.created, absl::UTCTimeZone())}};
}

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  const json object = json::parse(file, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : json::object();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Open(ServedModels* models,
                                                           std::string repository,
                                                           std::string data_dir) {
  std::unique_ptr<Publisher> publisher(
      new Publisher(models, std::move(repository), std::move(data_dir)));
  if (!publisher->data_dir_.empty()) {
    BRAID_ASSIGN_OR_RETURN(VersionStore store, VersionStore::Open(publisher->data_dir_));
    publisher->store_ = std::make_unique<VersionStore>(std::move(store));
  }
  return publisher;
}

int64_t Publisher::NewestStored(const std::vector<Source>& sources) {
  const auto newest = std::find_if(sources.rbegin(), sources.rend(),
                                   [](const Source& source) { return source.stored; });
  return newest != sources.rend() ? newest->version : 0;
}

int64_t Publisher::ReadPinned(const std::string& model, const std::vector<Source>& sources) const {
  const json pins = ReadJson(absl::StrCat(data_dir_, "/", kPinned));
  const auto pin = pins.find(model);
  if (pin == pins.end() || !pin->is_object()) {
    return 0;
  }
  // Versions published after the rollback take precedence.
  const auto number = [&](const char* key) {
    return pin->contains(key) && pin->at(key).is_number_integer() ? pin->at(key).get<int64_t>() : 0;
  };
  return NewestStored(sources) > number(kNewest) ? 0 : number(kVersion);
}

absl::Status Publisher::WritePinned(const std::string& model, int64_t version,
                                    const std::vector<Source>& sources) const {
  if (store_ == nullptr) {
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat(data_dir_, "/", kPinned);
  json pins = ReadJson(path);
  if (version == 0 && !pins.contains(model)) {
    return absl::OkStatus();
  }
  if (version == 0) {
    pins.erase(model);
  } else {
    pins[model] = {{kVersion, version}, {kNewest, NewestStored(sources)}};
  }
  return WriteFileAtomically(path, pins.dump(2) + "\n");
}

absl::StatusOr<std::vector<Publisher::Source>> Publisher::Sources(const std::string& model) const {
  std::map<int64_t, Source> sources;
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  // A model without a folder in the repository has no versions there.
  if (const auto entry = ScanModel(repository_, model); entry.ok()) {
    for (const RepositoryEntry::Version& version : entry->versions) {
      if (const auto path = FindModelFile(version, config->model_filename); path.ok()) {
        sources[version.version] = {version.version, *path, /*stored=*/false};
      }
    }
  }
  if (store_ != nullptr) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> versions, store_->Versions(model));
    for (const int64_t version : versions) {
      sources[version].version = version;
      sources[version].stored = true;
    }
  }
  std::vector<Source> list;
  for (auto& [version, source] : sources) {
    list.push_back(std::move(source));
  }
  return list;
}

void Publisher::WarnHidden(const std::string& model, const std::vector<Source>& sources) const {
  for (const Source& source : sources) {
    if (!source.stored || source.path.empty()) {
      continue;
    }
    const absl::StatusOr<VersionOrigin> origin = store_->ReadOrigin(model, source.version);
    Log(LogModule::kModels)
        .warn(
            "model '{}': '{}' is not served: version {} is what {} has published; rename the "
            "file's folder to {} and load the model to serve it",
            model, source.path, source.version,
            origin.ok() ? absl::StrCat("trainer '", origin->trainer, "'") : "a trainer",
            sources.back().version + 1);
  }
}

absl::Status Publisher::ServeSource(const std::string& model, const Source& source) {
  std::string path = source.path;
  std::map<std::string, std::string> origin;
  if (source.stored) {
    BRAID_ASSIGN_OR_RETURN(const StoredVersion stored, store_->Read(model, source.version));
    path = stored.model_path;
    origin = Describe(stored.origin);
  }
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(
      LoadedVersion loaded,
      LoadVersion({path, absl::StrCat(repository_, "/", model), model, source.version},
                  DeclaredConfig(*config), models_->workers(), OnRowDependence::kRunAlone,
                  models_->row_tests()));
  loaded.origin = std::move(origin);
  return models_->ServeVersion(std::move(loaded), config);
}

absl::Status Publisher::ServeStoredModel(const std::string& model) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served, models_->FindReplicas(model, 0));
  BRAID_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(model));
  if (sources.empty()) {
    return absl::OkStatus();
  }
  WarnHidden(model, sources);
  BRAID_RETURN_IF_ERROR(models_->ReserveVersion(model, sources.back().version));
  const int64_t pinned = ReadPinned(model, sources);
  const auto wanted = std::find_if(sources.begin(), sources.end(), [&](const Source& source) {
    return source.version == (pinned != 0 ? pinned : sources.back().version);
  });
  if (wanted == sources.end()) {
    return absl::OkStatus();
  }
  // The versions that the policy serves, without those in the repository.
  const VersionPolicy& policy = served->config().version_policy;
  const auto* latest = std::get_if<LatestVersions>(&policy);
  const int64_t count = latest != nullptr                                  ? latest->count
                        : std::holds_alternative<SpecificVersions>(policy) ? 1
                                                                           : std::ssize(sources);
  auto first = wanted + 1 - std::min<int64_t>(count, wanted + 1 - sources.begin());
  first = std::find_if(first, wanted, [](const Source& source) { return source.stored; });
  if (first == wanted && !wanted->stored && wanted->version == served->version()) {
    return absl::OkStatus();
  }
  for (auto source = first; source <= wanted; ++source) {
    BRAID_RETURN_IF_ERROR(ServeSource(model, *source));
  }
  Log(LogModule::kModels)
      .info("model '{}' serves version {}, {}", model, wanted->version,
            pinned != 0 ? "rolled back to" : "published before this start");
  return absl::OkStatus();
}

void Publisher::ServeStored(const std::string& model) {
  if (store_ == nullptr) {
    return;
  }
  const absl::MutexLock lock(&mu_);
  if (const absl::Status status = ServeStoredModel(model); !status.ok()) {
    Log(LogModule::kModels)
        .error("model '{}' serves no published version: {}", model, std::string(status.message()));
  }
}

absl::StatusOr<int64_t> Publisher::StoredAs(const std::string& model,
                                            const VersionOrigin& origin) const {
  if (store_ == nullptr) {
    return 0;
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> versions, store_->Versions(model));
  for (const int64_t version : versions) {
    const absl::StatusOr<VersionOrigin> stored = store_->ReadOrigin(model, version);
    if (stored.ok() && stored->trainer == origin.trainer &&
        stored->trainer_id == origin.trainer_id && stored->last_operator == origin.last_operator &&
        stored->sequence == origin.sequence &&
        stored->weights_checksum == origin.weights_checksum) {
      return version;
    }
  }
  return 0;
}

absl::StatusOr<int64_t> Publisher::Publish(
    const ModelConfig& config, ReplicaSet replicas, const VersionOrigin& origin,
    const std::function<absl::StatusOr<std::vector<NewFile>>()>& files) {
  const std::string& model = config.name;
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const auto current, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(ModelConfig reconfigured, ApplyCurrentConfig(config, *current));
  BRAID_ASSIGN_OR_RETURN(int64_t version, StoredAs(model, origin));
  if (version != 0) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(model));
    if (version < NewestStored(sources) || ReadPinned(model, sources) != 0) {
      return version;  // A retry, after another version has been chosen.
    }
  } else {
    BRAID_ASSIGN_OR_RETURN(version, models_->NextVersion(model));
    if (store_ != nullptr) {
      BRAID_ASSIGN_OR_RETURN(std::vector<NewFile> written, files());
      BRAID_RETURN_IF_ERROR(store_->Write(model, version, origin, std::move(written)));
    }
  }
  LoadedVersion published{std::move(reconfigured), version, std::move(replicas), Describe(origin)};
  BRAID_RETURN_IF_ERROR(SettlePublished(&published));
  BRAID_RETURN_IF_ERROR(WritePinned(model, 0, {}));
  BRAID_RETURN_IF_ERROR(models_->ServeVersion(std::move(published), current));
  return version;
}

absl::StatusOr<int64_t> Publisher::Rollback(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served, models_->FindReplicas(model, 0));
  const int64_t before = served->version();
  BRAID_ASSIGN_OR_RETURN(const std::vector<Source> sources, Sources(model));
  const auto wanted = std::find_if(sources.begin(), sources.end(), [version](const Source& source) {
    return source.version == version;
  });
  if (wanted == sources.end()) {
    return absl::NotFoundError(
        absl::StrCat("model '", model, "' has no version ", version, " to roll back to; there are ",
                     absl::StrJoin(sources, ", ", [](std::string* out, const Source& source) {
                       absl::StrAppend(out, source.version);
                     })));
  }
  if (version != before) {
    BRAID_RETURN_IF_ERROR(ServeSource(model, *wanted));
  }
  BRAID_RETURN_IF_ERROR(
      WritePinned(model, version == sources.back().version ? 0 : version, sources));
  return before;
}

}  // namespace braid
