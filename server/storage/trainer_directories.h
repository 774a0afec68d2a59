// Directory of each trainer, <data_dir>/trainers/<name>, with trainer.json, checkpoints/ and
// journal/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Names have 1 to 128 letters, digits, '_', '-' and '.' and do not start with '.'; other names are
// INVALID_ARGUMENT. Not thread-safe.
class TrainerDirectories {
 public:
  // Creates missing directories and removes leftovers of a crash.
  static absl::StatusOr<TrainerDirectories> Open(const std::string& data_dir);

  // Returns the names of all trainers, sorted.
  absl::StatusOr<std::vector<std::string>> List() const;

  // Writes trainer.json. Creates the directory together with it, so none exists without.
  absl::Status WriteSpec(const std::string& name, absl::string_view spec) const;
  // NOT_FOUND for an unknown trainer, DATA_LOSS if its trainer.json is missing.
  absl::StatusOr<std::string> ReadSpec(const std::string& name) const;

  // Returns the directory for CheckpointStore::Open().
  absl::StatusOr<std::string> CheckpointsOf(const std::string& name) const;
  // Returns the directory for Journal::Open().
  absl::StatusOr<std::string> JournalOf(const std::string& name) const;

  // Removes the directory with its contents. NOT_FOUND if it does not exist.
  absl::Status Remove(const std::string& name) const;

 private:
  explicit TrainerDirectories(std::string root) : root_(std::move(root)) {}

  std::string root_;
};

}  // namespace braid
