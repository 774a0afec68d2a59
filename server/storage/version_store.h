// The versions of models that were published, each with where it comes from.
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
  // Tells it from other trainers that have had its name.
  std::string trainer_id;
  // Who made the operation before the publication, as the trainer tells: another since a checkpoint
  // was restored, so that one which is made then is not taken for this one, sent again.
  std::string last_operator;
  int64_t step = 0;
  int64_t sequence = 0;
  // Of parameters and buffers: a trainer that went back has the same numbers again.
  std::string weights_checksum;
  // The name of the checkpoint of that state; empty: there is none.
  std::string checkpoint;
  absl::Time created;
};

struct StoredVersion {
  int64_t version = 0;
  std::string model_path;
  VersionOrigin origin;
};

// Writing is for one thread at a time; what is written is not changed any more, so that reading is
// for any. A model's name is any that a folder of a repository can have; others are
// INVALID_ARGUMENT.
class VersionStore {
 public:
  // Makes what is missing, and removes what a crash left.
  static absl::StatusOr<VersionStore> Open(const std::string& data_dir);

  // `files`: the model's own first. Returns when they are on the disk. ALREADY_EXISTS if the model
  // has that version here; RESOURCE_EXHAUSTED where the disk is full; what writing a file returns
  // if it fails.
  absl::Status Write(const std::string& model, int64_t version, const VersionOrigin& origin,
                     std::vector<NewFile> files) const;

  // Those that have versions here, in their order.
  absl::StatusOr<std::vector<std::string>> Models() const;
  // Ascending; none for a model that is not here.
  absl::StatusOr<std::vector<int64_t>> Versions(const std::string& model) const;

  // Reads every file through before it returns. NOT_FOUND if there is no such version, DATA_LOSS
  // naming the file that is damaged.
  absl::StatusOr<StoredVersion> Read(const std::string& model, int64_t version) const;
  // The same without the model's contents, which is quick.
  absl::StatusOr<VersionOrigin> ReadOrigin(const std::string& model, int64_t version) const;

 private:
  explicit VersionStore(std::string root) : root_(std::move(root)) {}

  // The directory of a version that is there.
  absl::StatusOr<std::string> Find(const std::string& model, int64_t version) const;

  std::string root_;
};

}  // namespace braid
