// Model repository in Triton's layout: <model>/config.pbtxt and <model>/<version>/model.pt.
//
// Symbolic links are followed. Models are code, so anyone who can write to the repository can run
// code as the server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// A model's folder at the time of the scan.
struct RepositoryEntry {
  struct Version {
    int64_t version = 0;
    std::string folder;
  };
  std::string name;
  std::string folder;
  // Path of config.pbtxt. Empty: the file does not exist.
  std::string config_path;
  // Ascending. Folders whose name is not a positive integer are skipped.
  std::vector<Version> versions;
};

// Lists the models in `directory`, sorted by name. Skips files, and folders whose name begins with
// a '.'. NOT_FOUND if `directory` cannot be read.
absl::StatusOr<std::vector<RepositoryEntry>> ScanRepository(const std::string& directory);

// Finds model `name` in the repository. INVALID_ARGUMENT if it is not a valid folder name,
// NOT_FOUND if the folder does not exist.
absl::StatusOr<RepositoryEntry> ScanModel(const std::string& directory, const std::string& name);

// Returns the path of the model's file in a version's folder: `filename`, or if that is empty,
// model.pt or model.pt2. NOT_FOUND if the file does not exist.
absl::StatusOr<std::string> FindModelFile(const RepositoryEntry::Version& version,
                                          const std::string& filename);

// Returns `path`, a model's file, and the file with its weights if there is one.
std::vector<std::string> ModelFiles(const std::string& path);

// Returns a text that changes when a file of the model is added, removed or written: the name, size
// and modification time of each file in its folder.
std::string ModelFingerprint(const RepositoryEntry& entry);

}  // namespace braid
