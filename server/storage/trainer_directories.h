// What is stored of each trainer: <data_dir>/trainers/<name>/trainer.json, and checkpoints/ beside
// it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

// Not to be used by two threads at a time. Names are 1 to 128 letters, digits, '_', '-' and '.',
// the first no '.'; others are INVALID_ARGUMENT.
class TrainerDirectories {
 public:
  // Makes what is missing, and removes what a crash left.
  static absl::StatusOr<TrainerDirectories> Open(const std::string& data_dir);

  // In their order.
  absl::StatusOr<std::vector<std::string>> List() const;

  // Writes trainer.json, and makes the directory with it: there is none without.
  absl::Status WriteSpec(const std::string& name, absl::string_view spec) const;
  // NOT_FOUND if there is no such trainer, DATA_LOSS if it has lost its trainer.json.
  absl::StatusOr<std::string> ReadSpec(const std::string& name) const;

  // For CheckpointStore::Open.
  absl::StatusOr<std::string> CheckpointsOf(const std::string& name) const;

  // Removes the directory and all that is in it. NOT_FOUND if there is none.
  absl::Status Remove(const std::string& name) const;

 private:
  explicit TrainerDirectories(std::string root) : root_(std::move(root)) {}

  std::string root_;
};

}  // namespace braid
