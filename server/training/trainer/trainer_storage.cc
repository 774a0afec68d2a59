#include "server/training/trainer/trainer_storage.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using nlohmann::json;

absl::StatusOr<StoredTrainer> Parse(const std::string& name, const std::string& text) {
  const json spec = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto field = [&spec](const char* key) {
    return spec.is_object() && spec.contains(key) ? spec[key] : json();
  };
  StoredTrainer trainer;
  trainer.name = name;
  if (!field("request").is_string() || !field("id").is_string() || !field("expired").is_boolean() ||
      !field("base_version").is_number_integer() ||
      !absl::Base64Unescape(field("request").get<std::string>(), &trainer.request)) {
    return absl::DataLossError("trainer.json is invalid");
  }
  trainer.id = field("id").get<std::string>();
  trainer.base_version = field("base_version").get<int64_t>();
  trainer.expired = field("expired").get<bool>();
  return trainer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerStorage>> TrainerStorage::Open(const std::string& data_dir) {
  BRAID_ASSIGN_OR_RETURN(TrainerDirectories trainers, TrainerDirectories::Open(data_dir));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<SharedFiles> shared,
                         SharedFiles::Open(absl::StrCat(data_dir, "/shared")));
  return std::unique_ptr<TrainerStorage>(
      new TrainerStorage(std::move(trainers), std::move(shared)));
}

absl::StatusOr<std::vector<StoredTrainer>> TrainerStorage::List() const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> names, trainers_.List());
  std::vector<StoredTrainer> stored;
  for (const std::string& name : names) {
    absl::StatusOr<StoredTrainer> trainer = Find(name);
    if (trainer.ok()) {
      stored.push_back(*std::move(trainer));
    } else {
      Log(LogModule::kStorage)
          .error("the stored trainer '{}' cannot be read: {}", name,
                 std::string(trainer.status().message()));
    }
  }
  return stored;
}

absl::StatusOr<StoredTrainer> TrainerStorage::Find(const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(const std::string text, trainers_.ReadSpec(name));
  return Parse(name, text);
}

absl::Status TrainerStorage::Write(const StoredTrainer& trainer) {
  const json spec = {{"request", absl::Base64Escape(trainer.request)},
                     {"id", trainer.id},
                     {"base_version", trainer.base_version},
                     {"expired", trainer.expired}};
  return trainers_.WriteSpec(trainer.name, spec.dump(2) + "\n");
}

absl::Status TrainerStorage::Remove(const std::string& name) {
  BRAID_RETURN_IF_ERROR(trainers_.Remove(name));
  // Not an error: the next start tries again.
  if (const absl::Status removed = shared_->RemoveUnused(); !removed.ok()) {
    Log(LogModule::kStorage).warn("trainers: {}", std::string(removed.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> TrainerStorage::OpenCheckpoints(
    const std::string& name) const {
  BRAID_ASSIGN_OR_RETURN(std::string directory, trainers_.CheckpointsOf(name));
  return CheckpointStore::Open(std::move(directory), shared_.get());
}

}  // namespace braid
