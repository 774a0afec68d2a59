#include "server/storage/versions/version_choices.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr char kPinned[] = "version";
constexpr char kNewest[] = "newest";
constexpr char kLabels[] = "labels";
constexpr char kUsed[] = "used";
constexpr char kReserved[] = "reserved";
constexpr int64_t kMaxBytes = int64_t{64} << 20;

int64_t NumberIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string TextIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

ReservedVersion ReservedFromJson(const Json& object) {
  return {.version = NumberIn(object, "version"),
          .trainer_id = TextIn(object, "trainer_id"),
          .last_operator = TextIn(object, "last_operator"),
          .sequence = NumberIn(object, "sequence"),
          .history = TextIn(object, "history")};
}

Json ToJson(const ReservedVersion& reserved) {
  return {{"version", reserved.version},
          {"trainer_id", reserved.trainer_id},
          {"last_operator", reserved.last_operator},
          {"sequence", reserved.sequence},
          {"history", reserved.history}};
}

VersionChoices FromJson(const Json& object) {
  VersionChoices choices = {.pinned = NumberIn(object, kPinned),
                            .newest = NumberIn(object, kNewest),
                            .used = NumberIn(object, kUsed)};
  if (const auto labels = object.find(kLabels); labels != object.end() && labels->is_object()) {
    for (const auto& [label, version] : labels->items()) {
      if (version.is_number_integer()) {
        choices.labels[label] = version.get<int64_t>();
      }
    }
  }
  if (const auto found = object.find(kReserved); found != object.end() && found->is_array()) {
    for (const Json& reserved : *found) {
      if (reserved.is_object()) {
        choices.reserved.push_back(ReservedFromJson(reserved));
      }
    }
  }
  return choices;
}

Json ToJson(const VersionChoices& choices) {
  Json object = Json::object();
  if (choices.pinned != 0) {
    object[kPinned] = choices.pinned;
    object[kNewest] = choices.newest;
  }
  if (!choices.labels.empty()) {
    object[kLabels] = choices.labels;
  }
  if (choices.used != 0) {
    object[kUsed] = choices.used;
  }
  for (const ReservedVersion& reserved : choices.reserved) {
    object[kReserved].push_back(ToJson(reserved));
  }
  return object;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VersionChoicesFile>> VersionChoicesFile::Open(std::string path) {
  ByModel models;
  std::error_code error;
  if (!path.empty() && std::filesystem::exists(path, error)) {
    BRAID_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      return absl::DataLossError(
          absl::StrCat("'", path,
                       "': not a JSON object (delete the file to serve the newest version "
                       "of each model, without labels)"));
    }
    for (const auto& [model, choices] : json.items()) {
      if (choices.is_object()) {
        models[model] = FromJson(choices);
      }
    }
  }
  return std::unique_ptr<VersionChoicesFile>(
      new VersionChoicesFile(std::move(path), std::move(models)));
}

VersionChoices VersionChoicesFile::Read(absl::string_view model) const {
  const absl::MutexLock lock(&mu_);
  const auto found = models_.find(model);
  return found == models_.end() ? VersionChoices() : found->second;
}

absl::Status VersionChoicesFile::Write(const std::string& model, const VersionChoices& choices) {
  const absl::MutexLock lock(&mu_);
  ByModel changed = models_;
  changed[model] = choices;
  if (changed[model] == VersionChoices()) {
    changed.erase(model);
  }
  if (changed == models_) {
    return absl::OkStatus();
  }
  if (!path_.empty()) {
    Json json = Json::object();
    for (const auto& [name, each] : changed) {
      json[name] = ToJson(each);
    }
    BRAID_RETURN_IF_ERROR(WriteFileDurably(path_, json.dump(2) + "\n"));
  }
  models_ = std::move(changed);
  return absl::OkStatus();
}

}  // namespace braid
