// Where trainers are kept: in the data directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/trainer_directories.h"

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

// Not to be used by two threads at a time.
class TrainerStorage {
 public:
  static absl::StatusOr<std::unique_ptr<TrainerStorage>> Open(const std::string& data_dir);

  // Those that can be read; the others are logged.
  absl::StatusOr<std::vector<StoredTrainer>> List() const;
  // NOT_FOUND if there is none, DATA_LOSS if it cannot be read.
  absl::StatusOr<StoredTrainer> Find(const std::string& name) const;
  absl::Status Write(const StoredTrainer& trainer);
  absl::Status Remove(const std::string& name) { return trainers_.Remove(name); }
  absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpoints(const std::string& name) const;

 private:
  explicit TrainerStorage(TrainerDirectories trainers) : trainers_(std::move(trainers)) {}

  TrainerDirectories trainers_;
};

}  // namespace braid
