// Where trainers and published versions are kept: the data directory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/trainer_directories.h"
#include "server/storage/version_store.h"

namespace braid {

struct StoredTrainer {
  std::string name;
  // Tells it from others that have had its name.
  std::string id;
  // As the client described it: opaque here.
  std::string request;
  // Whose weights it started from.
  int64_t base_version = 0;
  // It was idle for too long: it is there to be restored, and not started with the server.
  bool expired = false;
};

// Not to be used by two threads at a time, but for versions().
class TrainerStorage {
 public:
  static absl::StatusOr<std::unique_ptr<TrainerStorage>> Open(const std::string& data_dir);

  // Those that can be read; the others are logged.
  absl::StatusOr<std::vector<StoredTrainer>> List() const;
  std::optional<StoredTrainer> Find(const std::string& name) const;
  absl::Status Write(const StoredTrainer& trainer);
  absl::Status Remove(const std::string& name) { return trainers_.Remove(name); }
  absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpoints(const std::string& name) const;

  const VersionStore& versions() const { return versions_; }

 private:
  TrainerStorage(TrainerDirectories trainers, VersionStore versions)
      : trainers_(std::move(trainers)), versions_(std::move(versions)) {}

  TrainerDirectories trainers_;
  VersionStore versions_;
};

}  // namespace braid
