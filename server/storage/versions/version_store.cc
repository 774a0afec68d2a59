#include "server/storage/versions/version_store.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"
#include "server/storage/manifest.h"
#include "server/storage/model_files.h"
#include "server/storage/names.h"
#include "server/storage/sealed_directory.h"
#include "server/storage/staging.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr char kKind[] = "version";
// Files from which a model is read.
constexpr std::array kModelNames = {kTorchScriptFile, kPackageFile};
constexpr char kOriginName[] = "origin.json";

absl::StatusOr<std::string> PathOf(const std::string& root, absl::string_view model) {
  if (!IsFolderName(model)) {
    return InvalidField(
        "model", absl::StrCat("invalid model name '", absl::Utf8SafeCHexEscape(Excerpt(model)),
                              "' (expected 1 to 255 bytes without '/', not starting with "
                              "'.')"));
  }
  return absl::StrCat(root, "/", model);
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// Returns 0 if there is none.
int64_t VersionOf(const std::string& folder) {
  int64_t version = 0;
  return absl::SimpleAtoi(folder, &version) && version > 0 && folder == absl::StrCat(version)
             ? version
             : 0;
}

std::string OriginText(const VersionOrigin& origin) {
  const Json json = {
      {"trainer", origin.trainer},
      {"trainer_id", origin.trainer_id},
      {"last_operator", origin.last_operator},
      {"step", origin.step},
      {"sequence", origin.sequence},
      {"history", origin.history},
      {"checkpoint", origin.checkpoint},
      {"created", absl::FormatTime(absl::RFC3339_full, origin.created, absl::UTCTimeZone())}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<VersionOrigin> ParseOrigin(absl::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  VersionOrigin origin;
  for (const auto& [name, to] :
       {std::pair("trainer", &origin.trainer), std::pair("trainer_id", &origin.trainer_id),
        std::pair("checkpoint", &origin.checkpoint)}) {
    if (!json.contains(name) || !json[name].is_string()) {
      return absl::DataLossError(absl::StrCat("missing \"", name, "\""));
    }
    *to = json[name].get<std::string>();
  }
  // Older servers did not write them.
  for (const auto& [name, to] :
       {std::pair("last_operator", &origin.last_operator), std::pair("history", &origin.history)}) {
    if (const auto found = json.find(name); found != json.end() && found->is_string()) {
      *to = found->get<std::string>();
    }
  }
  for (const auto& [name, to] :
       {std::pair("step", &origin.step), std::pair("sequence", &origin.sequence)}) {
    if (!json.contains(name) || !json[name].is_number_integer()) {
      return absl::DataLossError(absl::StrCat("missing \"", name, "\""));
    }
    *to = json[name].get<int64_t>();
  }
  if (!json.contains("created") || !json["created"].is_string() ||
      !absl::ParseTime(absl::RFC3339_full, json["created"].get<std::string>(), &origin.created,
                       nullptr)) {
    return absl::DataLossError("missing \"created\"");
  }
  return origin;
}

// Returns the model file of a version, or nullptr.
const char* ModelNameIn(const Manifest& manifest) {
  for (const char* name : kModelNames) {
    if (manifest.files.contains(name)) {
      return name;
    }
  }
  return nullptr;
}

// Reads the origin of a version whose manifest has been read.
absl::StatusOr<VersionOrigin> ReadOriginIn(const std::string& directory, const Manifest& manifest) {
  const std::string path = absl::StrCat(directory, "/", kOriginName);
  const auto expected = manifest.files.find(kOriginName);
  if (expected == manifest.files.end() || ModelNameIn(manifest) == nullptr) {
    return absl::DataLossError(absl::StrCat("'", directory, "': manifest of another kind"));
  }
  BRAID_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, expected->second.bytes));
  if (ChecksumOf(text) != expected->second.checksum) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': checksum mismatch (expected ", expected->second.checksum, ")"));
  }
  absl::StatusOr<VersionOrigin> origin = ParseOrigin(text);
  if (!origin.ok()) {
    return InFile(path, origin.status());
  }
  return origin;
}

}  // namespace

absl::StatusOr<VersionStore> VersionStore::Open(const std::string& data_dir) {
  VersionStore store(absl::StrCat(data_dir, "/models"), absl::StrCat(data_dir, "/uploads"));
  BRAID_RETURN_IF_ERROR(RemoveTree(store.uploads_));
  BRAID_RETURN_IF_ERROR(MakeDirectories(store.root_));
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> models, ListDirectories(store.root_));
  for (const std::string& model : models) {
    BRAID_RETURN_IF_ERROR(RemoveLeftovers(absl::StrCat(store.root_, "/", model)));
  }
  return store;
}

absl::Status VersionStore::Write(const std::string& model, int64_t version,
                                 const VersionOrigin& origin, std::vector<NewFile> files) const {
  BRAID_ASSIGN_OR_RETURN(const std::string parent, PathOf(root_, model));
  const std::string name = absl::StrCat(version);
  if (IsDirectory(absl::StrCat(parent, "/", name))) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", parent, "': version ", version, " already exists"));
  }
  BRAID_RETURN_IF_ERROR(MakeDirectories(parent));
  Manifest manifest;
  manifest.kind = kKind;
  manifest.created = origin.created;
  files.push_back(FileOf(kOriginName, OriginText(origin)));
  Forget(absl::StrCat(parent, "/", name));  // Somebody may have removed a version of this number.
  return WriteSealedDirectory(parent, name, std::move(manifest), files).status();
}

absl::StatusOr<std::unique_ptr<VersionUpload>> VersionStore::NewUpload() const {
  return VersionUpload::Create(uploads_);
}

absl::Status VersionStore::Remove(const std::string& model, int64_t version) const {
  BRAID_RETURN_IF_ERROR(Find(model, version).status());
  BRAID_ASSIGN_OR_RETURN(const std::string parent, PathOf(root_, model));
  Forget(absl::StrCat(parent, "/", version));
  return RemoveWhole(parent, absl::StrCat(version));
}

void VersionStore::Forget(const std::string& directory) const {
  const absl::MutexLock lock(&origins_->mu);
  origins_->by_directory.erase(directory);
}

absl::StatusOr<std::vector<std::string>> VersionStore::Models() const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListDirectories(root_));
  std::vector<std::string> models;
  for (const std::string& folder : folders) {
    if (!IsFolderName(folder)) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> versions, Versions(folder));
    if (!versions.empty()) {
      models.push_back(folder);
    }
  }
  return models;
}

absl::StatusOr<std::vector<int64_t>> VersionStore::Versions(const std::string& model) const {
  BRAID_ASSIGN_OR_RETURN(const std::string parent, PathOf(root_, model));
  std::vector<int64_t> versions;
  if (!IsDirectory(parent)) {
    return versions;
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListDirectories(parent));
  for (const std::string& folder : folders) {
    if (const int64_t version = VersionOf(folder); version > 0) {
      versions.push_back(version);
    }
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

absl::StatusOr<StoredVersion> VersionStore::Read(const std::string& model, int64_t version) const {
  BRAID_ASSIGN_OR_RETURN(const std::string directory, Find(model, version));
  BRAID_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(directory, kKind));
  BRAID_RETURN_IF_ERROR(CheckContents(directory, manifest));
  BRAID_ASSIGN_OR_RETURN(VersionOrigin origin, ReadOriginIn(directory, manifest));
  return StoredVersion{version, absl::StrCat(directory, "/", ModelNameIn(manifest)),
                       std::move(origin)};
}

absl::StatusOr<VersionOrigin> VersionStore::ReadOrigin(const std::string& model,
                                                       int64_t version) const {
  BRAID_ASSIGN_OR_RETURN(const std::string directory, Find(model, version));
  {
    const absl::MutexLock lock(&origins_->mu);
    const auto known = origins_->by_directory.find(directory);
    if (known != origins_->by_directory.end()) {
      return known->second;
    }
  }
  BRAID_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(directory, kKind));
  BRAID_ASSIGN_OR_RETURN(VersionOrigin origin, ReadOriginIn(directory, manifest));
  const absl::MutexLock lock(&origins_->mu);
  return origins_->by_directory.insert({directory, std::move(origin)}).first->second;
}

absl::StatusOr<std::string> VersionStore::Find(const std::string& model, int64_t version) const {
  BRAID_ASSIGN_OR_RETURN(const std::string parent, PathOf(root_, model));
  std::string directory = absl::StrCat(parent, "/", version);
  if (!IsDirectory(directory)) {
    return absl::NotFoundError(absl::StrCat("'", directory, "': no such version"));
  }
  return directory;
}

}  // namespace braid
