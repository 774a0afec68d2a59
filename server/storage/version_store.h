// Published versions of models and their origins.
//
//   <data_dir>/models/<model>/<version>/manifest.json   see manifest.h
//                                       model.pt        a TorchScript module, or
//                                       model.pt2       an exported pair, and
//                                       model.safetensors  its weights
//                                       origin.json     its VersionOrigin
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/new_file.h"

namespace braid {

struct VersionOrigin {
  std::string trainer;
  // Distinguishes trainers that had the same name.
  std::string trainer_id;
  // ID of the operator of the operation before the publication. It changes when a checkpoint is
  // restored, so that a later publication is not taken for a retry of this one.
  std::string last_operator;
  int64_t step = 0;
  int64_t sequence = 0;
  // Checksum of parameters and buffers: after a restore, steps and sequences repeat.
  std::string weights_checksum;
  // Name of the checkpoint with this state, or empty.
  std::string checkpoint;
  absl::Time created;
};

struct StoredVersion {
  int64_t version = 0;
  std::string model_path;
  VersionOrigin origin;
};

// Reading is thread-safe, because versions never change. Writing is for one thread at a time. Model
// names must satisfy IsFolderName(), else INVALID_ARGUMENT.
class VersionStore {
 public:
  // Creates missing directories and removes leftovers of a crash.
  static absl::StatusOr<VersionStore> Open(const std::string& data_dir);

  // Writes a version and returns once it is durable. The first of `files` is the model.
  // ALREADY_EXISTS if the version exists; RESOURCE_EXHAUSTED if the disk is full; the error of a
  // file's `write`.
  absl::Status Write(const std::string& model, int64_t version, const VersionOrigin& origin,
                     std::vector<NewFile> files) const;

  // Returns the names of the models with versions, sorted.
  absl::StatusOr<std::vector<std::string>> Models() const;
  // Returns the versions of a model, ascending; empty for an unknown model.
  absl::StatusOr<std::vector<int64_t>> Versions(const std::string& model) const;

  // Verifies all files. NOT_FOUND for an unknown version, DATA_LOSS with a file that is damaged.
  absl::StatusOr<StoredVersion> Read(const std::string& model, int64_t version) const;
  // Same, without verifying the model, which is fast.
  absl::StatusOr<VersionOrigin> ReadOrigin(const std::string& model, int64_t version) const;

 private:
  explicit VersionStore(std::string root) : root_(std::move(root)) {}

  // Returns the directory of an existing version.
  absl::StatusOr<std::string> Find(const std::string& model, int64_t version) const;

  std::string root_;
};

}  // namespace braid
