// Published versions of models and their origins.
//
//   <data_dir>/models/<model>/<version>/manifest.json   see manifest.h
//                                       model.pt        a TorchScript module, or
//                                       model.pt2       an exported pair, and
//                                       model.safetensors  its weights
//                                       origin.json     its VersionOrigin
//   <data_dir>/uploads/                                 files of uploads in progress
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/new_file.h"
#include "server/storage/versions/version_upload.h"

namespace braid {

struct VersionOrigin {
  // Empty: a client uploaded the version.
  std::string trainer;
  // Distinguishes trainers that had the same name.
  std::string trainer_id;
  // ID of the operator of the operation before the publication. It changes when a checkpoint is
  // restored, so that a later publication is not taken for a retry of this one.
  std::string last_operator;
  int64_t step = 0;
  int64_t sequence = 0;
  // Sequence::history() before the publication: after a crash, sequences repeat. Empty if an older
  // server wrote the version.
  std::string history;
  // Name of the checkpoint with this state, or empty.
  std::string checkpoint;
  absl::Time created;
};

struct StoredVersion {
  int64_t version = 0;
  std::string model_path;
  VersionOrigin origin;
};

// Reading is thread-safe, because versions never change. If a version is removed during a read, the
// read fails with NOT_FOUND or DATA_LOSS. Writing and removing are for one thread at a time. Model
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

  // Creates a place for the files of an upload.
  absl::StatusOr<std::unique_ptr<VersionUpload>> NewUpload() const;

  // Removes a version with its files. NOT_FOUND for an unknown version.
  absl::Status Remove(const std::string& model, int64_t version) const;

  // Returns the names of the models with versions, sorted.
  absl::StatusOr<std::vector<std::string>> Models() const;
  // Returns the versions of a model, ascending; empty for an unknown model.
  absl::StatusOr<std::vector<int64_t>> Versions(const std::string& model) const;

  // Verifies all files. NOT_FOUND for an unknown version, DATA_LOSS with a file that is damaged.
  absl::StatusOr<StoredVersion> Read(const std::string& model, int64_t version) const;
  // Returns the origin without verifying the model. Remembers it, so that reading those of many
  // versions again is fast. Errors as Read().
  absl::StatusOr<VersionOrigin> ReadOrigin(const std::string& model, int64_t version) const;

 private:
  // Origins of versions by their directory.
  struct Origins {
    absl::Mutex mu;
    absl::flat_hash_map<std::string, VersionOrigin> by_directory ABSL_GUARDED_BY(mu);
  };

  VersionStore(std::string root, std::string uploads)
      : root_(std::move(root)),
        uploads_(std::move(uploads)),
        origins_(std::make_unique<Origins>()) {}

  void Forget(const std::string& directory) const;
  // Returns the directory of an existing version.
  absl::StatusOr<std::string> Find(const std::string& model, int64_t version) const;

  std::string root_;
  std::string uploads_;
  std::unique_ptr<Origins> origins_;
};

}  // namespace braid
