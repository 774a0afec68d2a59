// Trainers in the data directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/shared_files.h"
#include "server/storage/trainer_directories.h"

namespace braid {

// The description of a trainer on disk.
struct StoredTrainer {
  std::string name;
  // Unique: a later trainer of the same name has another.
  std::string id;
  // The client's request that created it; opaque here.
  std::string request;
  // Version of the model whose weights it started from.
  int64_t base_version = 0;
  // It was idle for too long. It can be restored, but is not started with the server.
  bool expired = false;
};

// Owned by the TrainerRegistry. Thread-compatible.
class TrainerStorage {
 public:
  static absl::StatusOr<std::unique_ptr<TrainerStorage>> Open(const std::string& data_dir);

  // Returns the trainers that can be read; logs the others.
  absl::StatusOr<std::vector<StoredTrainer>> List() const;
  // NOT_FOUND for an unknown name, DATA_LOSS if the trainer cannot be read.
  absl::StatusOr<StoredTrainer> Find(const std::string& name) const;
  absl::Status Write(const StoredTrainer& trainer);
  absl::Status Remove(const std::string& name);
  absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpoints(const std::string& name) const;
  absl::StatusOr<std::string> CheckpointsOf(const std::string& name) const {
    return trainers_.CheckpointsOf(name);
  }
  absl::StatusOr<std::string> JournalOf(const std::string& name) const {
    return trainers_.JournalOf(name);
  }

 private:
  TrainerStorage(TrainerDirectories trainers, std::unique_ptr<SharedFiles> shared)
      : trainers_(std::move(trainers)), shared_(std::move(shared)) {}

  TrainerDirectories trainers_;
  std::unique_ptr<SharedFiles> shared_;  // of all trainers' checkpoints
};

}  // namespace braid
